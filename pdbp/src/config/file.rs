//! Files of settings: those of TOML in which each key has a single value.
//!
//! Keys, bare or in quotes, strings of all four kinds, numbers and booleans are read as TOML defines them. Tables, arrays, dates and keys of
//! several names, which no setting has, are refused. The tests compare it with the crate `toml`, which reads all of TOML: every program
//! would have to compile that and four more packages for what is one file here.

/// The keys and their values, in the order of the file. Numbers come as settings read them.
///
/// # Errors
/// The line, and what is wrong with it.
pub(super) fn read(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut reader = Reader { rest: text.strip_prefix('\u{FEFF}').unwrap_or(text) };
    let mut entries: Vec<(String, String)> = Vec::new();
    let result = reader.entries(&mut entries);
    let line = 1 + text[..text.len() - reader.rest.len()].matches('\n').count();
    result.map(|()| entries).map_err(|what| format!("line {line}: {what}"))
}

type Read<T> = Result<T, &'static str>;

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn entries(&mut self, entries: &mut Vec<(String, String)>) -> Read<()> {
        loop {
            self.end_of_line()?;
            if self.rest.is_empty() {
                return Ok(());
            }
            let key = self.key()?;
            self.space();
            if !self.take("=") {
                return Err("a key has to be followed by `=` and a value; settings have no tables");
            }
            self.space();
            if entries.iter().any(|(other, _)| *other == key) {
                return Err("the key was there before");
            }
            let value = self.value()?;
            entries.push((key, value));
            self.space();
            if !self.rest.is_empty() && !self.rest.starts_with(['#', '\n', '\r']) {
                return Err("a value has to be followed by the end of its line");
            }
        }
    }

    fn take(&mut self, start: &str) -> bool {
        let rest = self.rest.strip_prefix(start);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    /// All characters up to the first that is not one of these.
    fn take_while(&mut self, is_one: impl Fn(char) -> bool) -> &'t str {
        let (taken, rest) = self.rest.split_at(self.rest.find(|c| !is_one(c)).unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn space(&mut self) {
        self.take_while(|c| matches!(c, ' ' | '\t'));
    }

    /// The ends of this line and of those behind it that are empty, with their comments.
    fn end_of_line(&mut self) -> Read<()> {
        loop {
            self.space();
            if self.rest.starts_with('#') {
                self.take_while(|c| !is_control(c));
            }
            if !self.take("\n") && !self.take("\r\n") {
                return if self.rest.starts_with(is_control) { Err(CONTROL) } else { Ok(()) };
            }
        }
    }

    fn key(&mut self) -> Read<String> {
        match self.rest.chars().next() {
            Some('"') if !self.rest.starts_with("\"\"\"") => self.string(),
            Some('\'') if !self.rest.starts_with("'''") => self.string(),
            _ => match self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
                "" => Err("no key, where one has to be"),
                key => Ok(key.to_owned()),
            },
        }
    }

    fn value(&mut self) -> Read<String> {
        if self.rest.starts_with(['"', '\'']) {
            return self.string();
        }
        let word = self.take_while(|c| !is_control(c) && !matches!(c, ' ' | '\t' | '#'));
        match word {
            "" => Err("no value"),
            "true" | "false" => Ok(word.to_owned()),
            _ => number(word).ok_or("no string, number or boolean; text has to be in quotes"),
        }
    }

    fn string(&mut self) -> Read<String> {
        for (quote, is_long) in [("\"\"\"", true), ("'''", true), ("\"", false), ("'", false)] {
            if self.take(quote) {
                return self.rest_of_string(quote, is_long);
            }
        }
        Err("no string")
    }

    fn rest_of_string(&mut self, quote: &str, is_long: bool) -> Read<String> {
        let mut text = String::new();
        if is_long && !self.take("\n") {
            self.take("\r\n");
        }
        loop {
            if self.take(quote) {
                // Up to two quotes may stand right before the end.
                let last = &quote[..usize::from(is_long)];
                for _ in 0..2 {
                    text.push_str(if is_long && self.take(last) { last } else { "" });
                }
                return Ok(text);
            }
            let is_end = is_long && (self.rest.starts_with('\n') || self.rest.starts_with("\r\n"));
            match self.next() {
                None => return Err("a string without its end"),
                Some('\\') if quote.starts_with('"') => text.extend(self.escaped(is_long)?),
                Some(c) if is_control(c) && !is_end => return Err(CONTROL),
                Some(c) => text.push(c),
            }
        }
    }

    /// What a backslash and the characters behind it stand for: nothing, where they are the end of a line.
    fn escaped(&mut self, is_long: bool) -> Read<Option<char>> {
        const OTHER: &str =
            "a backslash with what TOML does not define; in 'single quotes' it stands for itself";
        let behind = self.rest.trim_start_matches([' ', '\t']);
        if is_long && (behind.starts_with('\n') || behind.starts_with("\r\n")) {
            self.space();
            while self.take("\n") || self.take("\r\n") {
                self.space();
            }
            return Ok(None);
        }
        let digits = match self.next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            c => {
                let known = ESCAPES.into_iter().find(|(said, _)| Some(*said) == c);
                return known.map(|(_, meant)| Some(meant)).ok_or(OTHER);
            }
        };
        let (code, rest) = self.rest.split_at_checked(digits).ok_or(OTHER)?;
        self.rest = rest;
        let is_number = code.bytes().all(|b| b.is_ascii_hexdigit());
        let code = u32::from_str_radix(code, 16).ok().filter(|_| is_number).and_then(char::from_u32);
        code.map(Some).ok_or(OTHER)
    }
}

const CONTROL: &str = "a control character";

const ESCAPES: [(char, char); 8] = [
    ('"', '"'),
    ('\\', '\\'),
    ('b', '\u{8}'),
    ('e', '\u{1B}'),
    ('f', '\u{C}'),
    ('n', '\n'),
    ('r', '\r'),
    ('t', '\t'),
];

fn is_control(c: char) -> bool {
    c.is_ascii_control() && c != '\t'
}

/// A number: an integer of 64 bits in decimal, everything else as it stands there, without underscores.
fn number(word: &str) -> Option<String> {
    let text = word.replace('_', "");
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = word.strip_prefix(prefix) {
            let number = i64::from_str_radix(text.strip_prefix(prefix)?, radix);
            return are_digits(digits, radix).then(|| number.map_or(text, |number| number.to_string()));
        }
    }
    let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.strip_prefix(['+', '-']).unwrap_or(exponent)),
        None => (unsigned, "0"),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let is_one = [whole, fraction, exponent].into_iter().all(|digits| are_digits(digits, 10));
    let is_padded = whole.len() > 1 && whole.starts_with('0');
    (is_one && !is_padded || matches!(unsigned, "inf" | "nan"))
        .then(|| text.parse().map_or(text, |number: i64| number.to_string()))
}

/// Whether it is digits, which may have single underscores between them.
fn are_digits(text: &str, radix: u32) -> bool {
    text.split('_').all(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toml::de::{DeTable, DeValue};

    use super::*;

    /// As the crate `toml` reads it, if there is nothing in it that no setting has.
    fn expected(text: &str) -> Option<Vec<(String, String)>> {
        let table = DeTable::parse(text).ok()?.into_inner();
        let text = |value| match value {
            DeValue::String(text) => Some(text.into_owned()),
            // It leaves to whoever asks for the number to find that there is none.
            DeValue::Integer(digits) => match i128::from_str_radix(digits.as_str(), digits.radix()).ok()? {
                number if i64::try_from(number).is_ok() => Some(number.to_string()),
                _ => Some(digits.to_string()),
            },
            DeValue::Float(digits) => digits.as_str().parse::<f64>().ok().map(|_| digits.to_string()),
            DeValue::Boolean(value) => Some(value.to_string()),
            _ => None,
        };
        table
            .into_iter()
            .map(|(key, value)| Some((key.into_inner().into_owned(), text(value.into_inner())?)))
            .collect()
    }

    fn compare(text: &str) {
        let mut entries = read(text);
        if let Ok(entries) = &mut entries {
            entries.sort();
        }
        assert_eq!(entries.clone().ok(), expected(text), "{text:?}: {entries:?}");
    }

    #[test]
    fn values_are_read_as_toml_defines_them() {
        const NUMBERS: &str = "1 +1 -1 0 -0 +0 01 1_000 1__0 _1 1_ 0x1F 0xg 0o17 0b101 -0x1 0x 0x_1 0XF 9223372036854775807 \
            9223372036854775808 -9223372036854775808 99999999999999999999 0xFFFFFFFFFFFFFFFF 1.5 +1.5 -0.0 1. .5 1_0.2_5 1e5 1E5 1e+5 \
            1.5e-3 1e 1e0_5 01.5 1.5.2 inf -inf +inf nan -nan infinity true false True truefalse text 1979-05-27 07:32:00 [1] {a=1} é";
        let strings = [
            r#""text""#,
            r#""""#,
            r#""a b # c""#,
            r#""a\tb\n\"\\\b\f\r\e""#,
            r#""\x41\u00e9\U0001F600""#,
            r#""\uD800""#,
            r#""\q""#,
            r#""\u12""#,
            r#""\u+123""#,
            r#""open"#,
            r#""a"b""#,
            "\"a\tb\"",
            "\"a\u{1}b\"",
            "\"a\u{7F}b\"",
            "\"a\nb\"",
            r"'lit\eral'",
            "'it''s'",
            "''",
            "'a\nb'",
            r#""""long""""#,
            "\"\"\"\nfirst\nsecond\"\"\"",
            "\"\"\"a\\\n   b\"\"\"",
            "\"\"\"a\\  \n\n  b\"\"\"",
            "\"\"\"a\\ b\"\"\"",
            r#""""a "quoted" b""""#,
            r#""""two quotes"""""#,
            r#""""three quotes""""""#,
            r#""""four quotes"""""""#,
            "'''a'b''c'''",
            "'''\na'''''",
            "'''a\u{1}'''",
            "\"\"\"a\r\nb\"\"\"",
            "\"\"\"\r\na\"\"\"",
            "\"\"\"a\rb\"\"\"",
            "'''a\r\nb'''",
            "\"\"\"a\\\r\n  b\"\"\"",
            "\"\"\"a\\\r  b\"\"\"",
            "\"\"\"open\"\"",
            "",
        ];
        for value in NUMBERS.split(' ').chain(strings) {
            compare(&format!("a = {value}"));
            compare(&format!("a={value} # why\nb = 2"));
            compare(&format!("a = {value} b = 2"));
        }
    }

    #[test]
    fn keys_lines_and_comments_are_read_as_toml_defines_them() {
        let lines = [
            "",
            "\n",
            "\r\n",
            " \t",
            "a = 1\r\nb = 2\r\n",
            "a = 1\rb = 2",
            "a = 1\r",
            "\ra = 1",
            "  a\t=\t1  ",
        ];
        let comments = [
            "# only a comment",
            "#\u{1}",
            "#a\tb\na = 1",
            "a = 1 # \r\n",
            "a = 1\n\n\n#\n  b = 2",
            "\u{FEFF}a = 1",
        ];
        let keys = [
            "\"a b\" = 1",
            "'a' = 1",
            "a = 1\n'a' = 2",
            "a-b_C9 = 1",
            "1 = 2",
            "é = 1",
            "\"\" = 1",
            "\"\"\"a\"\"\" = 1",
            "'''a''' = 1",
        ];
        let tables = ["a.b = 1", "a . b = 1", "[a]", "[a]\nb = 1", "[[a]]", "\"\\u0061\" = 1\na = 2"];
        let broken = ["a", "a =", "= 1", "a = = 1", "a = 1, b = 2", "a: 1", "a\n= 1", "a =\n1"];
        for text in [&lines[..], &comments, &keys, &tables, &broken].concat() {
            compare(text);
        }
    }

    #[test]
    fn an_error_names_its_line() {
        let error = read("a = 1\n# b\nc = d").unwrap_err();
        assert_eq!(error, "line 3: no string, number or boolean; text has to be in quotes");
        assert_eq!(read("a = 1\n\na = 2").unwrap_err(), "line 3: the key was there before");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4096, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_read_as_by_the_crate(pieces in prop::collection::vec(
            prop_oneof![
                "[a-c]", "[ \t]", Just(" = ".to_owned()), Just("\n".to_owned()), Just("\r\n".to_owned()), "[\"']", Just("\"\"\"".to_owned()),
                Just("'''".to_owned()), Just("\\".to_owned()), Just("#".to_owned()), "[0-9_.eE+-]{1,4}", "0[xob]", "true|false|inf|nan",
                "[unrtUx]", "[\\[\\]{},]", "\\PC", "[\x00-\x1f\x7f]", "a = [0-9]{1,3}\n",
            ],
            0..14,
        )) {
            let text = pieces.concat();
            compare(&text);
            compare(&format!("a = {text}"));
        }
    }
}
