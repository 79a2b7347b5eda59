//! Faults in their written form: what, which nodes, when.

use pdbp_sim::network::Fault;

use super::{Failed, units};

const REMEDY: &str = "use a fault and a time, such as 'partition 0,1|2,3@10ms', 'cut 0,1@10ms', 'heal@50ms', 'crash 2@70ms', \
                      'restart 2@90ms' or 'slow 2,10@5ms' (node 2 runs 10 times slower); with --fabric also 'link-down 0-1@10ms', \
                      'link-up 0-1@50ms', 'switch-down 2@10ms' or 'switch-up 2@50ms'";

/// A fault and its time in nanoseconds.
pub(super) fn read(text: &str) -> Result<(u64, Fault), Failed> {
    let wrong = || format!("--fault '{text}': {REMEDY}");
    let (what, at) = text.rsplit_once('@').ok_or_else(wrong)?;
    let at = units::time(&format!("--fault '{text}': @"), at.trim())?;
    let (name, which) = what.trim().split_once(' ').unwrap_or((what.trim(), ""));
    if let Some(fault) = of_fabric(name, which.trim()) {
        return Ok((at, fault.ok_or_else(wrong)?));
    }
    let groups: Option<Vec<Vec<u16>>> = match which.trim() {
        "" => Some(Vec::new()),
        which => which.split('|').map(numbers).collect(),
    };
    let groups = groups.ok_or_else(wrong)?;
    let fault = match (name, groups.as_slice()) {
        ("partition", [_, ..]) => Fault::Partition(groups),
        ("heal", []) => Fault::Heal,
        ("cut", [pair]) => match pair[..] {
            [from, to] => Fault::cut(from, to),
            _ => return Err(wrong().into()),
        },
        ("slow", [pair]) => match pair[..] {
            [node, times] => Fault::slow(node, times.into()),
            _ => return Err(wrong().into()),
        },
        ("crash", [one]) if one.len() == 1 => Fault::Crash(one.iter().copied().sum()),
        ("restart", [one]) if one.len() == 1 => Fault::Restart(one.iter().copied().sum()),
        _ => return Err(wrong().into()),
    };
    Ok((at, fault))
}

/// A fault of a link or a switch; `Some(None)` if the link or the switch is not named as it should be.
fn of_fabric(name: &str, which: &str) -> Option<Option<Fault>> {
    let (what, state) = name.split_once('-')?;
    let is_up = match state {
        "up" => true,
        "down" => false,
        _ => return None,
    };
    let number = |text: &str| text.trim().parse::<usize>().ok();
    match what {
        "link" => {
            let ends = which.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?)));
            Some(ends.map(|(a, b)| Fault::Link { a, b, is_up }))
        }
        "switch" => Some(number(which).map(|switch| Fault::Switch { switch, is_up })),
        _ => None,
    }
}

fn numbers(text: &str) -> Option<Vec<u16>> {
    text.split(',').map(|number| number.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        for (text, at, fault) in [
            ("partition 0,1@10ms", 10_000_000, Fault::Partition(vec![vec![0, 1]])),
            ("partition 0|2, 3@1us", 1_000, Fault::Partition(vec![vec![0], vec![2, 3]])),
            ("heal@50ms", 50_000_000, Fault::Heal),
            ("cut 1,0@0", 0, Fault::cut(1, 0)),
            ("crash 2@70ms", 70_000_000, Fault::Crash(2)),
            ("restart 2 @ 90ms", 90_000_000, Fault::Restart(2)),
            ("slow 2,10@5ms", 5_000_000, Fault::slow(2, 10)),
            ("link-down 0-1@10ms", 10_000_000, Fault::link_down(0, 1)),
            ("link-up 3 - 12@1us", 1_000, Fault::link_up(3, 12)),
            ("switch-down 2@10ms", 10_000_000, Fault::switch_down(2)),
            ("switch-up 2@50ms", 50_000_000, Fault::switch_up(2)),
        ] {
            assert_eq!(read(text).unwrap(), (at, fault), "{text}");
        }
    }

    #[test]
    fn errors_name_the_fault_and_what_would_do() {
        for text in [
            "",
            "heal",
            "heal 1@1ms",
            "crash@1ms",
            "crash 1,2@1ms",
            "partition@1ms",
            "cut 1@1ms",
            "burn 1@1ms",
            "link-down 0@1ms",
            "link-down 0,1@1ms",
            "link-away 0-1@1ms",
            "switch-up@1ms",
            "switch-down a@1ms",
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("'heal@50ms'"), "{error}");
        }
        assert!(read("heal@soon").unwrap_err().to_string().contains("use a time"));
    }
}
