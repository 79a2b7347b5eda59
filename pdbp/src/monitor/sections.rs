//! A program's own figures, shown with those of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::Endpoint;

/// Maximum number of sections, bytes of JSON per section, and values per section.
const MOST: (usize, usize, usize) = (16, 4 << 20, 10_000);
/// Maximum characters of a name.
const LONGEST: usize = 64;
/// First words of the runtime's own figures after `pdbp_`, and its own page.
pub(super) const OWN: [&str; 16] = [
    "blocks",
    "cluster",
    "collect",
    "epoch",
    "faults",
    "free",
    "link",
    "messages",
    "node",
    "parts",
    "pipes",
    "received",
    "row",
    "section",
    "sent",
    "strangers",
];

/// What a program shows at an [`Endpoint`]: a JSON page, and figures for Prometheus.
#[derive(Debug)]
pub struct Section {
    json: Result<String, String>,
    families: Vec<Family>,
}

impl Section {
    /// A section whose page is `page` as JSON.
    pub fn new(page: &impl Serialize) -> Self {
        Self { json: serde_json::to_string(page).map_err(|error| error.to_string()), families: Vec::new() }
    }

    /// Adds figures to `/metrics`.
    pub fn family(mut self, family: Family) -> Self {
        self.families.push(family);
        self
    }

    pub(super) fn json(&self) -> &str {
        self.json.as_deref().unwrap_or("")
    }

    pub(super) fn families(&self) -> &[Family] {
        &self.families
    }

    /// # Errors
    /// The reason why the section cannot be shown.
    fn check(self) -> Result<Self, String> {
        let bytes =
            self.json.as_ref().map_err(|error| format!("its page cannot be written as JSON: {error}"))?.len();
        if bytes > MOST.1 {
            return Err(format!("its page has {bytes} bytes; the maximum is {}, so leave some out", MOST.1));
        }
        let values: usize = self.families.iter().map(|family| family.values.len()).sum();
        if values > MOST.2 {
            return Err(format!("it has {values} values; the maximum is {}, so use fewer labels", MOST.2));
        }
        let mut names = BTreeSet::new();
        for family in &self.families {
            let name = family.full_name();
            let labels = family.values.iter().flat_map(|(labels, _)| labels.iter().map(|(label, _)| *label));
            if let Some(bad) = [&*name].into_iter().chain(labels).find(|name| !is_name(name)) {
                return Err(format!("\"{bad}\" is not a valid name of a figure or label: {NAMES}"));
            }
            // By label, since their order does not matter.
            let by_label =
                |(labels, _): &'_ (Vec<_>, f64)| -> BTreeMap<_, _> { labels.iter().cloned().collect() };
            if family.values.iter().any(|value| by_label(value).len() < value.0.len()) {
                return Err(format!("a value of the figure \"{name}\" has a label twice; use each once"));
            }
            let sets: BTreeSet<BTreeMap<&str, String>> = family.values.iter().map(by_label).collect();
            let total = family.counts.then(|| format!("{name}_total"));
            let is_new = names.insert(name.clone()) && total.is_none_or(|total| names.insert(total));
            if !is_new || sets.len() < family.values.len() {
                return Err(format!("the figure \"{name}\" is repeated; give each its own name or labels"));
            }
        }
        Ok(self)
    }
}

/// Figures with one name and meaning, for Prometheus. The section's name comes before the family's, and the unit after it: the
/// counter `sold` with the unit `bytes` of the section `shop` is `pdbp_shop_sold_bytes_total`.
#[derive(Debug)]
pub struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) unit: Option<&'static str>,
    /// Whether it is a counter, which never decreases.
    pub(super) counts: bool,
    pub(super) values: Vec<(Vec<(&'static str, String)>, f64)>,
}

impl Family {
    /// A gauge: a value that goes up and down.
    pub fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, unit: None, counts: false, values: Vec::new() }
    }

    /// A counter: a value that only grows, from the start of the program.
    pub fn counter(name: &'static str, help: &'static str) -> Self {
        Self { counts: true, ..Self::gauge(name, help) }
    }

    /// Sets the unit, such as `seconds` or `bytes`; Prometheus expects base units without prefixes.
    pub fn unit(mut self, unit: &'static str) -> Self {
        self.unit = Some(unit);
        self
    }

    /// Sets the family's only value.
    pub fn value(self, value: f64) -> Self {
        self.labelled([], value)
    }

    /// Adds a value, distinguished from others by labels.
    pub fn labelled<const N: usize>(mut self, labels: [(&'static str, &str); N], value: f64) -> Self {
        let labels = labels.map(|(name, value)| (name, value.to_owned()));
        self.values.push((labels.to_vec(), value));
        self
    }

    fn full_name(&self) -> String {
        self.unit.map_or_else(|| self.name.to_owned(), |unit| format!("{}_{unit}", self.name))
    }
}

/// What names may contain.
const NAMES: &str = "use at most 64 lower case letters, digits and `_`, the first a letter";

fn is_name(name: &str) -> bool {
    let may = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= LONGEST && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.bytes().all(may)
}

/// Why a section is not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotShown {
    /// The name is invalid.
    Name(String),
    /// The name is taken, by the runtime or the program.
    Taken(String),
    /// There are already as many sections as allowed.
    TooMany,
}

impl fmt::Display for NotShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "a section cannot be named \"{name}\": {NAMES}"),
            Self::Taken(name) => {
                write!(f, "figures named \"{name}\" already exist; choose another name")
            }
            Self::TooMany => {
                write!(f, "{} sections already exist, the maximum; combine some", MOST.0)
            }
        }
    }
}

impl std::error::Error for NotShown {}

/// Keeps a section visible until it is dropped. Clients that asked before that may see the section a moment longer.
#[derive(Debug)]
#[must_use = "the section is gone with it"]
pub struct Showing {
    sections: Arc<Sections>,
    name: String,
}

impl Drop for Showing {
    fn drop(&mut self) {
        self.sections.all().retain(|(name, _)| *name != self.name);
    }
}

type Look = Arc<dyn Fn() -> Section + Send + Sync>;

/// All sections of an endpoint, by name.
#[derive(Default)]
pub(super) struct Sections(Mutex<Vec<(String, Look)>>);

impl fmt::Debug for Sections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Sections {
    fn all(&self) -> MutexGuard<'_, Vec<(String, Look)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.all().iter().map(|(name, _)| name.clone()).collect()
    }

    fn show(self: &Arc<Self>, name: &str, look: Look) -> Result<Showing, NotShown> {
        let first = name.split('_').next().unwrap_or(name);
        if !is_name(name) {
            return Err(NotShown::Name(name.to_owned()));
        }
        let mut all = self.all();
        // `shop` and `shop_window` could have figures with the same name.
        let is_first = |known: &str| known.split('_').next() == Some(first);
        if OWN.contains(&first) || all.iter().any(|(known, _)| is_first(known)) {
            return Err(NotShown::Taken(name.to_owned()));
        }
        if all.len() >= MOST.0 {
            return Err(NotShown::TooMany);
        }
        all.push((name.to_owned(), look));
        Ok(Showing { sections: Arc::clone(self), name: name.to_owned() })
    }

    /// The current content of a section; `None` if no section has this name.
    pub(super) fn render(&self, name: &str) -> Option<Result<Section, String>> {
        // Called without the lock: it may take a while, and may end its own section.
        let look = self.all().iter().find(|(known, _)| known == name).map(|(_, look)| Arc::clone(look))?;
        let section = catch_unwind(AssertUnwindSafe(|| look()));
        Some(section.map_err(|_| "the program panicked while making it".to_owned()).and_then(Section::check))
    }
}

impl Endpoint {
    /// Shows the program's own figures: a page `/name.json`, and its families in `/metrics`, as `pdbp_name_…`. `look` is called on
    /// the endpoint's thread whenever clients ask, once for all that ask together; all clients wait meanwhile, so it should return
    /// quickly. The cluster's rules also apply to these figures: the secret of `client_token_file`, if any, the hosts and the
    /// limits.
    ///
    /// If a section cannot be shown (`look` has panicked, a name is invalid, two figures have the same name, a page has more than 4
    /// MiB, there are more than 10,000 values), it is left out: its page gives the reason, with status 500, and `pdbp_section_up`
    /// in `/metrics` is 0.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use std::net::TcpStream;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use pdbp::Cluster;
    /// use pdbp::monitor::{Family, Section};
    ///
    /// let cluster = Cluster::builder().nodes(1).metrics("127.0.0.1:0".into()).start()?;
    /// let node = cluster.node(0).unwrap();
    /// let endpoint = node.endpoint().expect("it has the setting `metrics`");
    /// let sold = Arc::new(AtomicU64::new(7));
    /// let counted = Arc::clone(&sold);
    /// let showing = endpoint.show("shop", move || {
    ///     let sold = counted.load(Ordering::Relaxed);
    ///     Section::new(&[("sold", sold)]).family(Family::counter("sold", "Apples sold").value(sold as f64))
    /// })?;
    ///
    /// let get = |path: &str| {
    ///     let mut stream = TcpStream::connect(endpoint.address())?;
    ///     write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    ///     let mut answer = String::new();
    ///     stream.read_to_string(&mut answer).map(|_| answer)
    /// };
    /// assert!(get("/metrics")?.contains("\npdbp_shop_sold_total 7.0\n"));
    /// sold.store(8, Ordering::Relaxed);
    /// assert!(get("/shop.json")?.ends_with(r#"[["sold",8]]"#));
    /// drop(showing);
    /// assert!(get("/shop.json")?.contains("404 Not Found"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`NotShown`]: `name` must be a valid name whose first word (up to `_`) begins neither the runtime's figures nor another
    /// section. An endpoint has at most 16 sections.
    pub fn show(
        &self,
        name: &str,
        look: impl Fn() -> Section + Send + Sync + 'static,
    ) -> Result<Showing, NotShown> {
        self.sections.show(name, Arc::new(look))
    }
}
