//! The Mandelbrot set by sub-tasks. A tile whose border has one colour is filled; any other is cut into four sub-tasks, until tiles are small.
//! Nobody knows in advance how many tasks there will be, or which take long.
//!
//! `cargo run --release -p pdbp-tasks --example mandelbrot [SIZE] [FILE.pgm]`, or under `mpirun`.

use std::fs::File;
use std::io::{BufWriter, Write};

use pdbp_tasks::{Error, Program};
use serde::{Deserialize, Serialize};

/// Iterations after which a point counts as one of the set.
const MOST: u16 = 255;
/// Tiles up to this size are computed directly.
const SMALL: u32 = 32;

/// A square part of the picture.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Tile {
    x: u32,
    y: u32,
    size: u32,
    /// Size of the whole picture.
    picture: u32,
}

impl Tile {
    fn split(self) -> Option<[Self; 4]> {
        if self.size <= SMALL || !self.size.is_multiple_of(2) {
            return None;
        }
        let half = self.size / 2;
        Some([(0, 0), (half, 0), (0, half), (half, half)].map(|(x, y)| Self {
            x: self.x + x,
            y: self.y + y,
            size: half,
            ..self
        }))
    }

    /// Iterations at a point of the tile.
    fn at(self, x: u32, y: u32) -> u8 {
        let scale = 3.0 / f64::from(self.picture);
        let (cx, cy) = (f64::from(self.x + x) * scale - 2.25, f64::from(self.y + y) * scale - 1.5);
        let (mut zx, mut zy, mut count) = (0.0f64, 0.0f64, 0);
        while count < MOST && zx * zx + zy * zy <= 4.0 {
            (zx, zy) = (zx * zx - zy * zy + cx, 2.0 * zx * zy + cy);
            count += 1;
        }
        count as u8 // at most 255
    }

    /// The colour of the border, if it has only one. The set and its complement are both connected, so everything within has that colour, too.
    fn border(self) -> Option<u8> {
        let last = self.size - 1;
        let colour = self.at(0, 0);
        let same = |i| [(i, 0), (i, last), (0, i), (last, i)].iter().all(|(x, y)| self.at(*x, *y) == colour);
        (0..self.size).all(same).then_some(colour)
    }

    fn paint(self) -> Vec<u8> {
        (0..self.size).flat_map(|y| (0..self.size).map(move |x| self.at(x, y))).collect()
    }
}

/// Joins four tiles into one, row by row.
fn stitch((tile, parts): (Tile, Vec<Vec<u8>>)) -> Vec<u8> {
    let half = (tile.size / 2) as usize;
    let rows = |left: &[u8], right: &[u8]| -> Vec<u8> {
        left.chunks(half).zip(right.chunks(half)).flat_map(|(left, right)| [left, right].concat()).collect()
    };
    parts.chunks_exact(2).flat_map(|pair| rows(&pair[0], &pair[1])).collect()
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let size = arguments.next().map_or(Ok(1024), |text| text.parse()).map_err(Error::other)?;
    let file = arguments.next();
    let mut program = Program::new("mandelbrot");
    let stitch = program.kind("stitch", stitch);
    let quad = program.declare::<Tile, Vec<u8>>("quad");
    program.define(quad, move |scope, tile| match (tile.border(), tile.split()) {
        (Some(colour), _) => scope.done(vec![colour; (tile.size * tile.size) as usize]),
        (None, Some(four)) => {
            let parts = four.map(|tile| scope.add(quad, tile));
            scope.join(stitch, tile, &parts)
        }
        (None, None) => scope.done(tile.paint()),
    });
    program.run(|tasks| {
        let mut job = tasks.job::<()>("picture");
        let picture = job.add(quad, Tile { x: 0, y: 0, size, picture: size })?;
        let picture = job.wait(&picture)?;
        let inside = picture.iter().filter(|count| u16::from(**count) == MOST).count();
        println!("{size} x {size}: {inside} points of the set, by {} tasks", tasks.counts().taken);
        if let Some(name) = file {
            let mut out = BufWriter::new(File::create(name)?);
            write!(out, "P5\n{size} {size}\n255\n")?;
            out.write_all(&picture)?;
        }
        Ok(())
    })
}
