//! The figures as text for Prometheus (OpenMetrics).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::sections::Section;
use super::{ClusterFigures, Family, LinkFigures, NodeFigures, NodeReport, NodeState, RowFigures};

/// Writes all metrics. They have the label `node`; those of rows also `peer`, and those that both kinds of rows have also `row`,
/// which is `send` (SCBP) or `recv` (RCBP); those of links (`pdbp_link_…`) have `peer`, those of trunks `cluster` instead.
/// Sections of the program have labels of their own.
pub(super) fn text(figures: ClusterFigures, sections: Sections) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Figures(figures, sections)));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = text::encode(&mut text, &registry);
    // The encoder writes infinity as Rust does.
    text.replace(" inf\n", " +Inf\n").replace(" -inf\n", " -Inf\n")
}

/// By name; `Err` for one that cannot be shown.
type Sections = BTreeMap<String, Arc<Result<Section, String>>>;

#[derive(Debug)]
struct Figures(ClusterFigures, Sections);

type Labels = Vec<(&'static str, String)>;

/// Escapes a label's value, which the encoder does not do.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.cluster(&mut encoder)?;
        self.nodes(&mut encoder)?;
        self.traffic(&mut encoder)?;
        self.rows(&mut encoder)?;
        self.links(&mut encoder)?;
        self.sections(&mut encoder)
    }
}

impl Figures {
    fn cluster(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let took = ConstGauge::new(self.0.took_ms / 1e3);
        let (name, help) = ("pdbp_collect_duration", "How long the nodes took to answer");
        took.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), took.metric_type())?)?;
        for (state, help) in [
            (NodeState::Up, "Whether the node has answered"),
            (NodeState::Silent, "Whether the node has not answered in time"),
            (NodeState::Failed, "Whether the link to the node has failed"),
        ] {
            let name = format!("pdbp_node_{}", state.name());
            let values = self.0.nodes.iter();
            let values = values.map(|n| (label(n), f64::from(u8::from(n.state == state)))).collect();
            gauge(encoder, &name, help, values)?;
        }
        Ok(())
    }

    fn nodes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut of_nodes = |name: &str, help: &str, value: fn(&NodeFigures) -> f64| {
            let values = self.up().map(|(node, figures)| (label(node), value(figures))).collect();
            gauge(encoder, name, help, values)
        };
        of_nodes("pdbp_epoch", "The master's term", |f| f.epoch.into())?;
        of_nodes("pdbp_parts", "Parts registered", |f| f.parts.len() as f64)?;
        of_nodes("pdbp_free_blocks", "Blocks of the UMB that are in no row", |f| f.free_blocks.into())?;
        let pipes = |value: fn(super::InUse) -> u16| {
            let mut values = Vec::new();
            for (node, f) in self.up() {
                let groups =
                    [("private", f.private_pipes), ("message", f.message_pipes), ("stream", f.stream_pipes)];
                for (kind, pipes) in groups {
                    values.push((
                        vec![("node", escaped(&node.name)), ("kind", kind.to_owned())],
                        value(pipes).into(),
                    ));
                }
            }
            values
        };
        gauge(encoder, "pdbp_pipes_busy", "Pipes in use", pipes(|p| p.busy))?;
        gauge(encoder, "pdbp_pipes_configured", "Pipes there are", pipes(|p| p.total))?;
        let values = self.up().flat_map(|(node, f)| {
            f.counts
                .named()
                .map(|(what, n)| (vec![("node", escaped(&node.name)), ("kind", what.to_owned())], n))
        });
        counter(encoder, "pdbp_faults", "What went wrong, by kind", None, values.collect())?;
        let mut of_nodes = |name: &str, help: &str, value: fn(&NodeFigures) -> u64| {
            let values = self.up().map(|(node, figures)| (label(node), value(figures))).collect();
            counter(encoder, name, help, None, values)
        };
        let help = "Short messages copied out of their blocks because readers did not keep up";
        of_nodes("pdbp_messages_copied", help, |f| f.copied)?;
        of_nodes("pdbp_messages_relayed", "Messages of other nodes forwarded", |f| f.relayed)
    }

    fn traffic(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Rows = fn(&NodeFigures) -> &[RowFigures];
        let ways: [(&str, &str, Rows); 2] =
            [("sent", "sent to the peer", |f| &f.send), ("received", "received from the peer", |f| &f.recv)];
        for (way, text, rows) in ways {
            let of = |value: fn(&RowFigures) -> u64| {
                let all = self.up().flat_map(|(node, f)| rows(f).iter().map(move |row| (node, row)));
                all.map(|(node, row)| (self.peer(node, row), value(row))).collect::<Vec<_>>()
            };
            let name = |what: &str| format!("pdbp_{what}_{way}");
            counter(encoder, &name("blocks"), &format!("Blocks {text}"), None, of(|r| r.blocks))?;
            counter(encoder, &name("messages"), &format!("Messages {text}"), None, of(|r| r.messages))?;
            let help = format!("Bytes of the bodies of blocks {text}");
            counter(encoder, &format!("pdbp_{way}"), &help, Some(&Unit::Bytes), of(|r| r.bytes))?;
        }
        Ok(())
    }

    fn rows(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |value: fn(&RowFigures) -> f64| {
            let rows = self.both().map(|(node, row, kind)| {
                let mut labels = self.peer(node, row);
                labels.push(("row", kind.to_owned()));
                (labels, value(row))
            });
            rows.collect::<Vec<_>>()
        };
        let infinite = |r: &RowFigures| r.rsr.map_or(f64::INFINITY, f64::from);
        gauge(encoder, "pdbp_row_density_ratio", "DF = curSize / N", of(|r| r.df.into()))?;
        gauge(encoder, "pdbp_row_utilisation_ratio", "SU = used / curSize", of(|r| r.su.into()))?;
        let help = "RSR = used / (curSize - used)";
        gauge(encoder, "pdbp_row_receive_send_ratio", help, of(infinite))?;
        gauge(encoder, "pdbp_row_size_blocks", "N, the most elements", of(|r| r.size.into()))?;
        gauge(encoder, "pdbp_row_real_blocks", "curSize, the real elements", of(|r| r.real.into()))?;
        gauge(encoder, "pdbp_row_used_blocks", "Elements in use", of(|r| r.used.into()))?;
        gauge(encoder, "pdbp_row_waiting_blocks", "Blocks that wait in the row", of(|r| r.waiting.into()))?;
        let counts = |value: fn(&RowFigures) -> u64| {
            let rows = self.both().map(|(node, row, kind)| {
                let mut labels = self.peer(node, row);
                labels.push(("row", kind.to_owned()));
                (labels, value(row))
            });
            rows.collect::<Vec<_>>()
        };
        let help = "How often a sender had to wait for a vacant element";
        counter(encoder, "pdbp_row_stalls", help, None, counts(|r| r.stalls))?;
        let help = "How often the row should have grown but no block was free";
        counter(encoder, "pdbp_row_exhausted", help, None, counts(|r| r.exhausted))
    }

    /// Links over sockets, and trunks; empty if there are none.
    fn links(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = || self.up().flat_map(|(node, f)| f.links.iter().map(move |link| (node, link)));
        let gauges = |value: fn(&LinkFigures) -> f64| {
            all().map(|(node, link)| (self.ends(node, link), value(link))).collect::<Vec<_>>()
        };
        let help = "Whether there is a connection";
        gauge(encoder, "pdbp_link_up", help, gauges(|l| f64::from(u8::from(l.state == "up"))))?;
        let help = "Blocks in a super-element, k";
        gauge(encoder, "pdbp_link_density_blocks", help, gauges(|l| l.density as f64))?;
        type Count = (&'static str, &'static str, Option<Unit>, fn(&LinkFigures) -> u64);
        let bytes = || Some(Unit::Bytes);
        let counts: [Count; 8] = [
            ("sent", "Bytes of blocks that the other end has received", bytes(), |l| l.sent_bytes),
            ("received", "Bytes of blocks received, after expansion", bytes(), |l| l.received_bytes),
            ("plain", "Bytes of compressed blocks, before compression", bytes(), |l| l.plain_bytes),
            ("packed", "Bytes of compressed blocks, after compression", bytes(), |l| l.packed_bytes),
            ("connections", "Connections there were", None, |l| l.connections),
            ("failures", "Sessions that have failed", None, |l| l.failures),
            ("blocks_sent_again", "Blocks sent again after an interruption", None, |l| l.sent_again),
            ("malformed", "Connections dropped because of malformed data", None, |l| l.malformed),
        ];
        for (what, help, unit, value) in counts {
            let values = all().map(|(node, link)| (self.ends(node, link), value(link))).collect();
            counter(encoder, &format!("pdbp_link_{what}"), help, unit.as_ref(), values)?;
        }
        // Of nodes without sockets there is nothing to say. One that listens may be called before it has a link.
        let listens = |f: &NodeFigures| !f.links.is_empty() || f.strangers.named().any(|(_, n)| n > 0);
        let values = self.up().filter(|(_, f)| listens(f)).flat_map(|(node, f)| {
            f.strangers
                .named()
                .map(|(why, n)| (vec![("node", escaped(&node.name)), ("kind", why.to_owned())], n))
        });
        counter(
            encoder,
            "pdbp_strangers_refused",
            "Connection attempts refused, by kind",
            None,
            values.collect(),
        )
    }

    /// The program's own sections.
    fn sections(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let up = |(name, section): (&String, &Arc<Result<_, _>>)| {
            (vec![("section", name.clone())], f64::from(u8::from(section.is_ok())))
        };
        let help = "Whether the program could show the section";
        gauge(encoder, "pdbp_section_up", help, self.1.iter().map(up).collect())?;
        for (section, shown) in &self.1 {
            for family in shown.iter().flat_map(Section::families) {
                of_program(encoder, section, family)?;
            }
        }
        Ok(())
    }

    fn ends(&self, node: &NodeReport, link: &LinkFigures) -> Labels {
        if link.cluster.is_empty() {
            return self.peer_of(node, link.peer);
        }
        vec![("node", escaped(&node.name)), ("cluster", escaped(&link.cluster))]
    }

    /// The nodes that have answered. Others' last known figures are left out, so that they are not taken for current ones.
    fn up(&self) -> impl Iterator<Item = (&NodeReport, &NodeFigures)> {
        let up = self.0.nodes.iter().filter(|node| node.state == NodeState::Up);
        up.filter_map(|node| Some((node, node.figures.as_ref()?)))
    }

    fn both(&self) -> impl Iterator<Item = (&NodeReport, &RowFigures, &'static str)> {
        self.up().flat_map(|(node, f)| {
            let send = f.send.iter().map(move |row| (node, row, "send"));
            send.chain(f.recv.iter().map(move |row| (node, row, "recv")))
        })
    }

    fn peer(&self, node: &NodeReport, row: &RowFigures) -> Labels {
        self.peer_of(node, row.peer)
    }

    fn peer_of(&self, node: &NodeReport, peer: u16) -> Labels {
        let peer = self.0.nodes.iter().find(|node| node.node == peer).map_or("", |peer| &peer.name);
        vec![("node", escaped(&node.name)), ("peer", escaped(peer))]
    }
}

fn label(node: &NodeReport) -> Labels {
    vec![("node", escaped(&node.name))]
}

fn of_program(encoder: &mut DescriptorEncoder<'_>, section: &str, family: &Family) -> fmt::Result {
    let Family { name, help, unit, counts, values } = family;
    if values.is_empty() {
        return Ok(());
    }
    let name = format!("pdbp_{section}_{name}");
    let unit = unit.map(|unit| Unit::Other(unit.to_owned()));
    let kind =
        if *counts { ConstCounter::new(0.0f64).metric_type() } else { ConstGauge::new(0.0f64).metric_type() };
    let mut encoder = encoder.encode_descriptor(&name, &escaped(help), unit.as_ref(), kind)?;
    for (labels, value) in values {
        let labels: Labels = labels.iter().map(|(name, value)| (*name, escaped(value))).collect();
        let put = |encoder: &mut MetricEncoder<'_>| match counts {
            true => encoder.encode_counter::<NoLabelSet, _, f64>(value, None),
            false => encoder.encode_gauge(value),
        };
        // Without labels there are no braces.
        match labels.is_empty() {
            true => put(&mut encoder)?,
            false => put(&mut encoder.encode_family(&labels)?)?,
        }
    }
    Ok(())
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: Vec<(Labels, f64)>,
) -> fmt::Result {
    if values.is_empty() {
        // Some readers reject families without values.
        return Ok(());
    }
    let kind = ConstGauge::new(0.0f64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let encoder = family.encode_family(&labels)?;
        ConstGauge::new(value).encode(encoder)?;
    }
    Ok(())
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    values: Vec<(Labels, u64)>,
) -> fmt::Result {
    if values.is_empty() {
        return Ok(());
    }
    let kind = ConstCounter::new(0u64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, unit, kind)?;
    for (labels, value) in values {
        let encoder = family.encode_family(&labels)?;
        ConstCounter::new(value).encode(encoder)?;
    }
    Ok(())
}
