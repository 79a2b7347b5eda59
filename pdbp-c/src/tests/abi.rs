//! The ABI: `abi.txt`, `include/pdbp.h` and what is exported are the same. A line of `abi.txt` that changes or goes needs another minor version
//! of this crate; new lines need none.

use std::fmt::Write;
use std::mem::offset_of;

use super::exports;
use crate::group::{ELEMENTS, OPERATIONS};
use crate::message::{BatchInfo, MessageInfo};
use crate::node::{EventInfo, KINDS, StatsInfo};
use crate::status::STATUSES;
use crate::{cluster, message, node, part};

/// Functions, structs and constants, as Rust has them.
fn abi() -> String {
    let mut text = String::new();
    for export in exports() {
        let (result, args) = (export.signature)();
        let args = if args.is_empty() { "void".to_owned() } else { args.join(", ") };
        writeln!(text, "function {result} {}({args})", export.name).unwrap();
    }
    macro_rules! layout {
        ($type:ty, $name:literal: $($field:ident)*) => {
            writeln!(text, "struct {} {}", $name, size_of::<$type>()).unwrap();
            $(writeln!(text, "field {}.{} {}", $name, stringify!($field), offset_of!($type, $field)).unwrap();)*
        };
    }
    layout!(MessageInfo, "pdbp_message": data size source command flags held owner);
    layout!(BatchInfo, "pdbp_batch": data each count source command flags held owner reserved);
    layout!(EventInfo, "pdbp_event_info": size kind count part number peer other);
    layout!(StatsInfo, "pdbp_node_stats": size free_blocks blocks_sent bytes_sent messages_sent blocks_received bytes_received
        messages_received stalls held_blocks unroutable undelivered malformed node private_pipes stream_pipes reserved);
    for (name, value) in constants() {
        writeln!(text, "constant {name} {value}").unwrap();
    }
    text
}

fn constants() -> Vec<(&'static str, i128)> {
    let mut all: Vec<_> = STATUSES.iter().map(|(name, code)| (*name, i128::from(*code))).collect();
    all.extend(KINDS.iter().map(|(name, kind)| (*name, i128::from(*kind))));
    all.extend([ELEMENTS, OPERATIONS].concat().iter().map(|(name, code)| (*name, i128::from(*code))));
    all.extend([
        ("PDBP_ABI", cluster::ABI.into()),
        ("PDBP_SET_TIMEOUT", -1),
        ("PDBP_NOBODY", node::NOBODY.0.into()),
        ("PDBP_COMMAND", message::COMMAND.into()),
        ("PDBP_CPU", 0),
        ("PDBP_GPU", 1),
        ("PDBP_COMMUNICATION", 2),
        ("PDBP_RECV", part::INTEREST[0].into()),
        ("PDBP_SEND", part::INTEREST[1].into()),
        ("PDBP_STREAM", part::STREAM.into()),
    ]);
    all
}

const HEADERS: [&str; 2] = [include_str!("../../include/pdbp.h"), include_str!("../../include/pdbp_cuda.h")];

#[test]
fn abi_txt_is_what_is_exported() {
    let (now, committed) = (abi(), include_str!("../../abi.txt"));
    assert_eq!(now, committed, "abi.txt should be\n{now}");
}

/// The headers without comments, one line for each declaration.
fn declarations() -> String {
    let mut plain = String::new();
    for (i, piece) in HEADERS.concat().split("/*").enumerate() {
        plain.push_str(if i == 0 { piece } else { piece.split_once("*/").unwrap().1 });
    }
    plain
}

#[test]
fn the_header_declares_each_function_as_it_is() {
    let mut declared: Vec<String> = Vec::new();
    for line in declarations().lines().filter(|line| line.ends_with(");") && line.contains('(')) {
        let (head, args) = line.trim_end_matches(");").split_once('(').unwrap();
        let args: Vec<_> = args.split(", ").map(type_of).collect();
        declared.push(format!(
            "function {}({})",
            head.replace("* ", "*").replace(" *", " * "),
            args.join(", ")
        ));
    }
    let mut exported: Vec<_> =
        abi().lines().filter(|line| line.starts_with("function")).map(str::to_owned).collect();
    declared.sort();
    exported.sort();
    assert_eq!(declared, exported);
}

/// The type of a parameter, without its name.
fn type_of(parameter: &str) -> String {
    let name = parameter.rfind([' ', '*']).map_or(0, |at| at + 1);
    let kind = if name == 0 { parameter } else { &parameter[..name] };
    kind.trim_end().to_owned()
}

#[test]
fn the_header_has_each_constant_as_it_is() {
    let (mut declared, declarations) = (Vec::new(), declarations());
    for line in declarations.lines() {
        let Some((name, value)) = line.strip_prefix("#define ").and_then(|line| line.split_once(' ')) else {
            continue;
        };
        // Of a function, or of a pointer.
        if name.contains('(') || value.contains('*') {
            continue;
        }
        let value = value.trim().trim_matches(['(', ')']).trim_end_matches('u');
        let number = match value.strip_prefix("0x") {
            _ if value == "UINT64_MAX" => u64::MAX.into(),
            Some(digits) => i128::from_str_radix(digits, 16).unwrap(),
            None => value.parse().unwrap(),
        };
        declared.push((name, number));
    }
    let mut constants = constants();
    declared.sort();
    constants.sort();
    assert_eq!(declared, constants);
}
