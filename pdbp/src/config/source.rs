//! Where values come from: a file and the environment.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::{ConfigError, Origin, Settings};

impl Settings {
    /// The defaults, overridden by the file that `PDBP_CONFIG` names (or `file`, if given) and then by the environment.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        let named = std::env::var_os("PDBP_CONFIG").map(PathBuf::from);
        if let Some(path) = file.map(Path::to_path_buf).or(named) {
            settings.read_file(&path)?;
        }
        // Lossy: another program's variable that is not UTF-8 does not matter, and one of ours is refused for its
        // value.
        let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
        settings.read_environment(std::env::vars_os().map(|(name, value)| (text(name), text(value))))?;
        Ok(settings)
    }

    pub(super) fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let fail = |reason: String| ConfigError::File { path: path.to_path_buf(), reason };
        let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
        let table = DeTable::parse(&text).map_err(|e| {
            let line =
                e.span().map_or(1, |span| 1 + text.bytes().take(span.start).filter(|b| *b == b'\n').count());
            fail(format!("line {line}: {}", e.message()))
        })?;
        for (key, value) in table.into_inner() {
            let value = match value.into_inner() {
                DeValue::String(text) => text.into_owned(),
                DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
                    .map_or_else(|_| digits.to_string(), |number| number.to_string()),
                DeValue::Float(digits) => digits.to_string(),
                DeValue::Boolean(value) => value.to_string(),
                other => other.type_str().to_owned(),
            };
            self.set(key.get_ref(), &value, Origin::File(path.to_path_buf()))?;
        }
        Ok(())
    }

    pub(super) fn read_environment(
        &mut self,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<(), ConfigError> {
        // Variables of the project that are not settings.
        const OTHERS: [&str; 2] = ["CONFIG", "REQUIRE_GPU"];
        for (name, value) in variables {
            match name.strip_prefix("PDBP_") {
                Some(key) if !OTHERS.contains(&key) => {
                    self.set(&key.to_ascii_lowercase(), &value, Origin::Environment)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
