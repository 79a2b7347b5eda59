//! Numbers with units.

use super::Failed;

const TIMES: &[(&str, f64)] =
    &[("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9)];
const LINKS: &[(&str, f64)] = &[("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
const COUNTS: &[(&str, f64)] = &[("", 1.0), ("k", 1e3), ("M", 1e6)];
/// Nanoseconds in an hour, the longest time.
const HOUR: f64 = 3600e9;

/// A time in nanoseconds.
pub(super) fn time(option: &str, text: &str) -> Result<u64, Failed> {
    read(text, TIMES, HOUR)
        .ok_or_else(|| format!("{option} {text}: use a time such as 20us, 50ms or 2s, up to 60min").into())
}

/// The rate of a link in bits per second; 0 is no limit.
pub(super) fn link(option: &str, text: &str) -> Result<u64, Failed> {
    read(text, LINKS, 1e13).ok_or_else(|| {
        format!("{option} {text}: use a rate such as 100mbit or 1gbit, up to 10000gbit, or 0 for no limit")
            .into()
    })
}

/// A number of messages per second.
pub(super) fn count(option: &str, text: &str) -> Result<u64, Failed> {
    read(text, COUNTS, 1e9)
        .ok_or_else(|| format!("{option} {text}: use messages per second such as 5000, 20k or 1M").into())
}

/// A share.
pub(super) fn share(option: &str, text: &str) -> Result<f64, Failed> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("{option} {text}: use a share from 0 to 1, such as 0.001").into())
}

/// A whole number from `least` to `most`.
pub(super) fn whole(option: &str, text: &str, least: u64, most: u64) -> Result<u64, Failed> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("{option} {text}: use a whole number from {least} to {most}").into())
}

/// A number and one of the units; 0 needs none.
fn read(text: &str, units: &[(&str, f64)], most: f64) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let factor = factor.or((number == 0.0 && unit.is_empty()).then_some(1.0))?;
    let value = (number * factor).round();
    (0.0..=most).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        let times = [("50ms", 50_000_000), ("20us", 20_000), ("1.5s", 1_500_000_000), ("0", 0), ("7ns", 7)];
        for (text, nanos) in times {
            assert_eq!(time("--time", text).unwrap(), nanos, "{text}");
        }
        assert_eq!(link("--link", "1gbit").unwrap(), 1_000_000_000);
        assert_eq!(count("--rate", "2.5k").unwrap(), 2_500);
    }

    #[test]
    fn errors_name_the_value_and_what_would_do() {
        for text in ["", "5", "ms", "-1ms", "5 ms", "1h", "61min", "NaNs", "1.2.3s"] {
            let error = time("--time", text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--time {text}: use a time such as")), "{error}");
        }
        assert!(link("--link", "1GB").unwrap_err().to_string().contains("--link 1GB: use a rate"));
        assert!(share("--loss", "2").unwrap_err().to_string().contains("from 0 to 1"));
        assert!(whole("--nodes", "0", 1, 9).unwrap_err().to_string().contains("from 1 to 9"));
    }
}
