//! What messages between the memories of CUDA devices cost, compared with copies alone.
//!
//! ```text
//! cargo run --release -p pdbp-benches --features cuda --bin gpu -- --csv gpu.csv
//! cargo run --release -p pdbp-benches --features cuda --bin gpu -- --quick copies device
//! ```
//!
//! Without a device it says why, and exits with 0; with `PDBP_REQUIRE_GPU=1` in the environment, with 1.

mod arguments;
mod copies;
mod device;
mod host;
mod nodes;
mod pieces;
mod runs;
mod table;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use pdbp_benches::arguments::exit;
use pdbp_cuda::device::Cuda;

use arguments::{Arguments, What};
use table::Output;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let device = match Cuda::open(arguments.device.into()) {
        Ok(device) => device,
        Err(e) if e.is_absence() => {
            println!("skipped: all measurements on a device: {e}");
            return ExitCode::from(u8::from(std::env::var_os("PDBP_REQUIRE_GPU").is_some()));
        }
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::FAILURE;
        }
    };
    exit(measure(&device, &arguments))
}

fn measure(device: &Cuda, arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let info = device.info()?;
    println!("# device {}: {}, {} MiB", info.ordinal, info.name, info.memory >> 20);
    let mut output = Output::new(arguments.csv.as_deref())?;
    for what in arguments.what() {
        match what {
            What::Copies => copies::measure(device, arguments, &mut output)?,
            What::Device => device::measure(device, arguments, &mut output)?,
            What::Pieces => pieces::measure(device, arguments, &mut output)?,
        }
    }
    Ok(())
}
