//! Reports as a table, and as a file of comma-separated values.

use std::fmt::Write as _;

use pdbp_sim::network::Report;

use super::Series;

const MICROSECOND: f64 = 1e3;
const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Two tables with a row for each report: how the traffic fared, and what it cost.
pub(super) fn text(policy: &str, routing: &str, reports: &[Report]) -> String {
    let mut text = String::new();
    let seed = reports.first().map_or(0, |report| report.seed);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        text,
        "virtual time, seed {seed}, policy {policy}, routing {routing}\n\n                              \
         in              latency, µs\n nodes   messages     MB/s    time       \
         50 %      90 %      99 %    99.9 %      most     lost  refused"
    );
    for report in reports {
        let _ = write!(
            text,
            "{:>6} {:>10} {:>8.2} {:>6.1}%",
            report.nodes,
            report.delivered,
            report.throughput() / 1e6,
            report.efficiency() * 100.0
        );
        for latency in latencies(report) {
            let _ = write!(text, " {latency:>9.1}");
        }
        let _ = writeln!(text, " {:>8} {:>8}", report.lost, report.refused);
    }
    let _ = writeln!(
        text,
        "\n           blocks          in use, of a node    memory of a node, MiB         links\n \
         nodes       sent   fill    mean      most       blocks    tables     failed  restored  epoch"
    );
    for report in reports {
        let _ = writeln!(
            text,
            "{:>6} {:>10} {:>5.1}% {:>7.0} {:>9} {:>12.3} {:>9.3} {:>10} {:>9} {:>6}",
            report.nodes,
            report.blocks,
            report.fill * 100.0,
            report.mean_blocks,
            report.most_blocks,
            report.block_memory as f64 / MEBIBYTE,
            report.table_memory as f64 / MEBIBYTE,
            report.links.failures,
            report.links.restored,
            report.epoch
        );
    }
    text
}

/// Microseconds that 50, 90, 99, 99.9 and 100 % do not exceed.
fn latencies(report: &Report) -> [f64; 5] {
    let [half, ninety, most_of, nearly] =
        [500, 900, 990, 999].map(|permille| report.latencies.permille(permille));
    [half, ninety, most_of, nearly, report.latencies.most()].map(|nanos| nanos as f64 / MICROSECOND)
}

/// All figures, column names first.
pub(super) fn csv(policy: &str, series: &[Series]) -> String {
    let mut text = String::from(
        "nodes,seed,policy,time_ns,traffic_ns,sent,delivered,in_time,lost,refused,returned,bytes_per_s,efficiency,\
         p50_us,p90_us,p99_us,p999_us,most_us,blocks,fill,mean_blocks,most_blocks,block_bytes,table_bytes,frames,\
         frames_lost,frames_repeated,links_failed,links_restored,epoch,digest,routing,relayed,\
         relay_lost\n",
    );
    let runs = series.iter().flat_map(|series| series.reports.iter().map(|report| (series.name, report)));
    for (routing, report) in runs {
        let Report { nodes, seed, time, traffic_time, sent, delivered, timely, .. } = report;
        let Report { lost, refused, returned, links, block_memory, table_memory, .. } = report;
        let _ = write!(
            text,
            "{nodes},{seed},{policy},{time},{traffic_time},{sent},{delivered},{timely},{lost},{refused},{returned},\
             {:.0},{:.4},",
            report.throughput(),
            report.efficiency()
        );
        for latency in latencies(report) {
            let _ = write!(text, "{latency:.3},");
        }
        let _ = writeln!(
            text,
            "{},{:.4},{:.1},{},{block_memory},{table_memory},{},{},{},{},{},{},{:016x},{routing},{},{}",
            report.blocks,
            report.fill,
            report.mean_blocks,
            report.most_blocks,
            links.frames,
            links.lost,
            links.repeated,
            links.failures,
            links.restored,
            report.epoch,
            report.digest,
            report.relayed,
            report.relay_lost
        );
    }
    text
}
