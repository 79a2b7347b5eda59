//! Parses values of settings from text; `None` for an invalid value.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::config::{Scheme, Trunk};

pub(super) fn number<T: FromStr + PartialOrd>(
    text: &str,
    range: RangeInclusive<T>,
    to: &mut T,
) -> Option<()> {
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    *to = plain.parse().ok().filter(|n| range.contains(n))?;
    Some(())
}

pub(super) fn micros(text: &str, range: RangeInclusive<u64>, to: &mut Duration) -> Option<()> {
    let mut n = 0;
    number(text, range, &mut n)?;
    *to = Duration::from_micros(n);
    Some(())
}

pub(super) fn choice<T: Copy>(text: &str, choices: &[(&str, T)], to: &mut T) -> Option<()> {
    *to = choices.iter().find(|(name, _)| *name == text)?.1;
    Some(())
}

pub(super) fn chosen<T: PartialEq>(value: &T, choices: &[(&str, T)]) -> String {
    choices.iter().find(|(_, v)| v == value).map_or(String::new(), |(name, _)| (*name).to_owned())
}

/// "off", or the value that `read` parses.
pub(super) fn optional<T>(
    text: &str,
    read: impl FnOnce(&str) -> Option<T>,
    to: &mut Option<T>,
) -> Option<()> {
    *to = if text == "off" { None } else { Some(read(text)?) };
    Some(())
}

/// Host and port. Whether the host exists shows only when the address is used.
pub(super) fn address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let plain = !host.is_empty() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'));
    (plain && port.parse::<u16>().is_ok()).then(|| text.to_owned())
}

/// Several addresses, separated by commas.
pub(super) fn addresses(text: &str) -> Option<String> {
    text.split(',').all(|one| address(one.trim()).is_some()).then(|| text.to_owned())
}

/// The name of a cluster in a grid.
pub(super) fn cluster(text: &str) -> Option<String> {
    is_cluster(text).then(|| text.to_owned())
}

/// Whether this is a valid name of a cluster.
pub(crate) fn is_cluster(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    plain && text.len() <= 16 && text.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// A cluster and the address of its gateway.
pub(super) fn trunk(text: &str) -> Option<Trunk> {
    let (name, url) = text.trim().split_once('=')?;
    let (scheme, at) = url.split_once("://").unwrap_or(("tcp", url));
    let (scheme, _) = Scheme::ALL.into_iter().find(|(_, name)| *name == scheme)?;
    Some(Trunk { cluster: cluster(name)?, scheme, address: address(at)? })
}

/// Host names separated by commas, without ports.
pub(super) fn hosts(text: &str) -> Option<Vec<String>> {
    let names = text.split(',').map(str::trim);
    names.map(|name| is_host(name).then(|| name.to_owned())).collect()
}

/// Whether this is a valid host name. A name whose last label is a number would be an address.
fn is_host(name: &str) -> bool {
    let mut labels = name.strip_suffix('.').unwrap_or(name).split('.');
    let is_label = |label: &str| {
        let plain = label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        plain && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    let ends_in_number =
        labels.clone().next_back().is_some_and(|last| last.chars().all(|c| c.is_ascii_digit()));
    name.len() <= 254 && !ends_in_number && labels.all(is_label)
}

pub(super) fn json_file(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    path.extension().is_some_and(|e| e == "json").then(|| path.to_path_buf())
}
