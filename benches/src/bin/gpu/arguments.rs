//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use pdbp::{Builder, ConfigError, PinMemory};

/// Measures messages between the memories of CUDA devices, beside copies alone
#[derive(Clone, Debug, Parser)]
#[command(name = "gpu", version)]
pub(crate) struct Arguments {
    /// What is measured; all of it if nothing is named
    what: Vec<What>,
    /// Small sizes and few runs, to see whether it works
    #[arg(long)]
    pub(crate) quick: bool,
    /// Bytes of a message, several by commas; from 4 KiB to 1 GiB if none is given
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<NonZeroUsize>,
    /// The number of the device
    #[arg(long, default_value_t = 0)]
    pub(crate) device: u16,
    /// Runs per row and column, of which the median is shown, after one that does not count
    #[arg(long)]
    runs: Option<NonZeroUsize>,
    /// Bytes of a block
    #[arg(long, default_value_t = 2 << 20)]
    block_bytes: usize,
    /// Copies under way at a time, of each message
    #[arg(long, default_value = "3")]
    pub(crate) in_flight: NonZeroUsize,
    /// A setting of PDBP, such as `row_blocks=8`
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Writes all results to this file
    #[arg(long)]
    pub(crate) csv: Option<PathBuf>,
}

/// A measurement, with tables of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Copies alone, from and to pinned and pageable memory
    Copies,
    /// Messages from device memory to device memory, of two nodes of this process
    Device,
    /// Small messages, many at a time, from device memory to device memory
    Pieces,
}

/// How long anything may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

impl Arguments {
    pub(crate) fn what(&self) -> Vec<What> {
        if self.what.is_empty() { What::value_variants().to_vec() } else { self.what.clone() }
    }

    /// Those that are given, or from 4 KiB on, each four times the one before.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        if !self.sizes.is_empty() {
            return self.sizes.iter().map(|bytes| bytes.get()).collect();
        }
        let last = if self.quick { 5 } else { 9 };
        (0..=last).map(|n| 4096 << (2 * n)).collect()
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.map_or(if self.quick { 3 } else { 9 }, NonZeroUsize::get)
    }

    /// How many of so many bytes make a run that can be timed, and is short.
    pub(crate) fn count(&self, bytes: usize) -> usize {
        let (total, most) = if self.quick { (4 << 20, 20) } else { (512 << 20, 500) };
        (total / bytes).clamp(1, most)
    }

    /// How many small messages of so many bytes make a run.
    pub(crate) fn messages(&self, bytes: usize) -> usize {
        let (total, most) = if self.quick { (1 << 20, 1000) } else { (64 << 20, 50_000) };
        (total / bytes).clamp(1, most)
    }

    /// A cluster of two nodes whose blocks are pinned for the device.
    pub(crate) fn cluster(&self) -> Result<Builder, ConfigError> {
        let builder = Builder::from_env()?.nodes(2).timeout(PATIENCE);
        let builder = builder.block_bytes(self.block_bytes).memory_bytes(64 * self.block_bytes);
        let builder = builder.pin_memory(PinMemory::Device(self.device));
        Ok(self.settings.iter().fold(builder, |builder, (key, value)| builder.set(key, value)))
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`: use KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}
