//! Series for the plots, drawn from an outcome.

use std::collections::BTreeMap;

use pdbp_plots::Series;

use super::csv::origin;
use crate::measure::Scores;
use crate::outcome::Outcome;
use crate::streams::Streams;

/// One of the three measures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) of: fn(&Scores) -> f32,
}

pub(crate) const MEASURES: [Measure; 3] = [
    Measure { name: "Blur", meaning: "0 sharp … 1 blurred", of: |scores| scores.blur },
    Measure { name: "Blockiness", meaning: "about 1 without visible blocks", of: |scores| scores.blockiness },
    Measure { name: "Smoothness", meaning: "0 rough … 1 smooth", of: |scores| scores.smoothness },
];

/// Time steps on the x axis of plots over time.
const STEPS: usize = 60;
/// Classes of a distribution.
const BINS: usize = 48;

/// Length of the run in seconds, from the start of the first pass to the last arrival.
pub(super) fn length(outcome: &Outcome) -> f64 {
    let origin = origin(outcome);
    let last = outcome.arrivals.iter().map(|arrival| arrival.received_ns).max().unwrap_or(origin);
    (last.saturating_sub(origin) as f64 * 1e-9).max(1e-6)
}

/// The step of the x axis to which a moment belongs.
fn step_of(outcome: &Outcome) -> impl Fn(u64) -> usize + use<> {
    let (origin, length) = (origin(outcome), length(outcome));
    move |at_ns| {
        let seconds = at_ns.saturating_sub(origin) as f64 * 1e-9;
        ((seconds / length * STEPS as f64) as usize).min(STEPS - 1)
    }
}

/// Name shown for a clip: the last part of its path.
pub(crate) fn short_name(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}

/// The most clips that get a separate line.
pub(super) const MOST_CLIPS: usize = 6;

/// Scores by clip: at most [`MOST_CLIPS`], the others together.
pub(super) fn by_clip<'a>(streams: &'a Streams, outcome: &Outcome) -> Vec<(&'a str, Vec<(usize, Scores)>)> {
    let clips = streams.clips();
    let shown = if clips.len() > MOST_CLIPS { MOST_CLIPS - 1 } else { clips.len() };
    let mut groups: Vec<(&str, Vec<_>)> =
        clips.iter().take(shown).map(|clip| (short_name(clip.name()), Vec::new())).collect();
    if shown < clips.len() {
        groups.push(("all others", Vec::new()));
    }
    let step = step_of(outcome);
    for arrival in &outcome.arrivals {
        let clip = streams.clip_index(arrival.record.id().stream).unwrap_or_default();
        if let Some((_, scores)) = groups.get_mut(clip.min(shown)) {
            scores.push((step(arrival.received_ns), arrival.record.scores()));
        }
    }
    groups
}

/// Mean of a measure over time.
pub(super) fn over_time(outcome: &Outcome, scores: &[(usize, Scores)], measure: Measure) -> Vec<(f64, f64)> {
    let mut sums = [(0.0, 0u32); STEPS];
    for (step, scores) in scores {
        let (sum, count) = &mut sums[*step];
        *sum += f64::from((measure.of)(scores));
        *count += 1;
    }
    let width = length(outcome) / STEPS as f64;
    let points = sums.iter().enumerate().filter(|(_, (_, count))| *count > 0);
    points.map(|(step, (sum, count))| ((step as f64 + 0.5) * width, sum / f64::from(*count))).collect()
}

/// Smallest and largest value of a measure, kept slightly apart even if they are equal.
pub(super) fn range(outcome: &Outcome, measure: Measure) -> (f64, f64) {
    let values = outcome.arrivals.iter().map(|arrival| f64::from((measure.of)(&arrival.record.scores())));
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return (0.0, 1.0);
    }
    let margin = ((high - low) * 0.03).max(0.01);
    (low - margin, high + margin)
}

/// Share of frames in each of [`BINS`] classes between `low` and `high`, in percent, as the outline of a histogram.
pub(super) fn distribution(
    scores: &[(usize, Scores)],
    measure: Measure,
    (low, high): (f64, f64),
) -> Vec<(f64, f64)> {
    let mut counts = [0u32; BINS];
    for (_, scores) in scores {
        let place = (f64::from((measure.of)(scores)) - low) / (high - low);
        counts[((place * BINS as f64) as usize).min(BINS - 1)] += 1;
    }
    let width = (high - low) / BINS as f64;
    let share = |count: u32| f64::from(count) * 100.0 / scores.len().max(1) as f64;
    // Empty classes at both ends would only hide the axis.
    let Some(first) = counts.iter().position(|count| *count > 0) else { return Vec::new() };
    let last = counts.iter().rposition(|count| *count > 0).unwrap_or(first);
    let edge = |bin: usize| low + bin as f64 * width;
    let steps =
        (first..=last).flat_map(|bin| [(edge(bin), share(counts[bin])), (edge(bin + 1), share(counts[bin]))]);
    [(edge(first), 0.0)].into_iter().chain(steps).chain([(edge(last + 1), 0.0)]).collect()
}

/// Frames per second over time, as steps.
pub(super) fn throughput(outcome: &Outcome) -> Series {
    let mut counts = [0u32; STEPS];
    let step = step_of(outcome);
    for arrival in &outcome.arrivals {
        counts[step(arrival.received_ns)] += 1;
    }
    let width = length(outcome) / STEPS as f64;
    // Before that there were scores, too.
    let first = outcome.arrivals.first().filter(|_| outcome.has_dropped());
    let first = first.map_or(0, |arrival| step(arrival.received_ns) + 1);
    let points = counts.iter().enumerate().skip(first).flat_map(|(step, count)| {
        let rate = f64::from(*count) / width;
        [(step as f64 * width, rate), ((step + 1) as f64 * width, rate)]
    });
    Series { name: String::new(), points: points.collect() }
}

/// Density factor of every buffer row over time, the best used rows first; rows from a node to itself come last.
pub(super) fn densities(outcome: &Outcome) -> Vec<Series> {
    #[derive(Default)]
    struct Row {
        points: Vec<(f64, f64)>,
        used: f64,
    }
    let origin = origin(outcome);
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for sample in &outcome.densities {
        let at = sample.at_ns.saturating_sub(origin) as f64 * 1e-9;
        let row = rows.entry(&sample.row).or_default();
        row.points.push((at, sample.density));
        row.used += sample.utilisation;
    }
    let own = |name: &str| {
        let ends = name.rsplit_once(": ").and_then(|(_, ends)| ends.split_once(" → "));
        ends.is_some_and(|(from, to)| from == to)
    };
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(a, row_a), (b, row_b)| own(a).cmp(&own(b)).then(row_b.used.total_cmp(&row_a.used)));
    rows.into_iter().map(|(name, row)| Series { name: name.to_owned(), points: row.points }).collect()
}
