//! The programs of the paper: messages in turn, collectives, matrices, sums, a convolution. Each checks its own result.

use pdbp_core::collective::Op::Sum;
use pdbp_sim::rapidio::mpirio::{self, Comm, Report};
use pdbp_sim::rapidio::{Timing, Topology};

use super::Failed;

/// Multiply-adds of a DSP per cycle.
const MULTIPLIERS: usize = 16;
/// Processes of the paper's matrices and convolution.
pub(super) const PROCESSES: usize = 8;
/// Rows of A and columns of B, one for each process.
pub(super) const ROWS: usize = PROCESSES;

/// A run in which each process reports whether its result is right.
fn checked(
    topology: &Topology,
    timing: Timing,
    what: &str,
    program: impl AsyncFn(Comm) -> bool,
) -> Result<Report<bool>, Failed> {
    let report = mpirio::run(topology, timing, program)?;
    match report.results.iter().position(|right| !right) {
        Some(rank) => Err(format!("{what}: the result of rank {rank} is wrong; this is a bug").into()),
        None => Ok(report),
    }
}

fn cycles(operations: usize) -> u64 {
    operations.div_ceil(MULTIPLIERS) as u64
}

/// The call that a test of the paper's table 1 makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Process 0 sends to the others in turn, its share to each.
    Messages,
    Broadcast,
    Gather,
    Scatter,
    Reduce,
}

impl Test {
    pub(super) const ALL: [Self; 5] =
        [Self::Messages, Self::Broadcast, Self::Gather, Self::Scatter, Self::Reduce];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Messages => "send and receive",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Reduce => "reduce",
        }
    }

    /// Runs it with a send buffer of this many bytes.
    pub(super) fn run(
        self,
        topology: &Topology,
        timing: Timing,
        bytes: usize,
    ) -> Result<Report<bool>, Failed> {
        checked(topology, timing, self.name(), async |mut world| {
            let (rank, size) = (world.rank(), world.size());
            let value = |of: usize| (of * 37 + 5) as u8;
            let ended = match self {
                Self::Messages if rank == 0 => {
                    let share = vec![value(0); bytes / (size - 1)];
                    let mut ended = Ok(());
                    for to in 1..size {
                        ended = ended.and(world.send(to, 0, &share).await);
                    }
                    return ended.is_ok();
                }
                Self::Messages => {
                    let mut share = vec![0; bytes / (size - 1)];
                    let ended = world.recv(0, 0, &mut share).await;
                    return ended.is_ok() && share.iter().all(|byte| *byte == value(0));
                }
                Self::Broadcast => {
                    let mut data = vec![value(rank); bytes];
                    world.broadcast(0, &mut data).await.map(|()| data.iter().all(|byte| *byte == value(0)))
                }
                Self::Gather => {
                    let mut all = vec![0; if rank == 0 { bytes * size } else { 0 }];
                    let ended = world.gather(0, &vec![value(rank); bytes], &mut all).await;
                    ended.map(|()| {
                        all.chunks(bytes).zip(0..).all(|(block, of)| block.iter().all(|b| *b == value(of)))
                    })
                }
                Self::Scatter => {
                    let block = bytes / size;
                    let all: Vec<u8> = (0..block * size).map(|i| value(i / block)).collect();
                    let mut own = vec![0; block];
                    let ended = world.scatter(0, if rank == 0 { &all } else { &[] }, &mut own).await;
                    ended.map(|()| own.iter().all(|byte| *byte == value(rank)))
                }
                Self::Reduce => {
                    let mut data = vec![rank as u32; bytes / 4];
                    let sum = (size * (size - 1) / 2) as u32;
                    world.reduce(0, &mut data, Sum).await.map(|()| rank > 0 || data.iter().all(|v| *v == sum))
                }
            };
            ended == Ok(true)
        })
    }
}

/// A[i][j] and B[j][i], small enough that products are exact.
fn a(row: usize, column: usize) -> f32 {
    ((row * 7 + column * 3) % 11) as f32 - 5.0
}

fn b(row: usize, column: usize) -> f32 {
    ((row * 5 + column) % 13) as f32 - 6.0
}

fn product(columns: usize) -> Vec<f32> {
    let cell = |i: usize| (0..columns).map(|k| a(i / ROWS, k) * b(k, i % ROWS)).sum();
    (0..ROWS * ROWS).map(cell).collect()
}

/// Everything of A is at process 0, all have B: scatter rows, multiply, Reduce.
pub(super) fn slices(columns: usize) -> Result<Report<bool>, Failed> {
    let topology = Topology::boards(2).chain();
    checked(&topology, Timing::PAPER, "matrix by slices", async |mut world| {
        let rank = world.rank();
        let all: Vec<f32> = (0..ROWS * columns).map(|i| a(i / columns, i % columns)).collect();
        let mut row = vec![0f32; columns];
        let scattered = world.scatter(0, if rank == 0 { &all } else { &[] }, &mut row).await;
        let mut result = vec![0f32; ROWS * ROWS];
        for column in 0..ROWS {
            result[rank * ROWS + column] =
                row.iter().enumerate().map(|(k, value)| value * b(k, column)).sum();
        }
        world.compute(cycles(ROWS * columns)).await;
        let ended = scattered.and(world.reduce(0, &mut result, Sum).await);
        ended.is_ok() && (rank > 0 || result == product(columns))
    })
}

/// Process 0 has A and B: scatter rows and columns, multiply, pass the column on, and so on; then Reduce.
pub(super) fn fox(columns: usize) -> Result<Report<bool>, Failed> {
    let topology = Topology::boards(2).chain();
    checked(&topology, Timing::PAPER, "matrix as by Fox", async |mut world| {
        let (rank, size) = (world.rank(), world.size());
        let rows: Vec<f32> = (0..ROWS * columns).map(|i| a(i / columns, i % columns)).collect();
        let all: Vec<f32> = (0..ROWS * columns).map(|i| b(i % columns, i / columns)).collect();
        let (mut row, mut column) = (vec![0f32; columns], vec![0f32; columns]);
        let mut ended = world.scatter(0, if rank == 0 { &rows } else { &[] }, &mut row).await;
        ended = ended.and(world.scatter(0, if rank == 0 { &all } else { &[] }, &mut column).await);
        let mut result = vec![0f32; ROWS * ROWS];
        for step in 0..size {
            let of = (rank + size - step) % size;
            result[rank * ROWS + of] = row.iter().zip(&column).map(|(a, b)| a * b).sum();
            world.compute(cycles(columns)).await;
            if step + 1 < size {
                let mut next = vec![0f32; columns];
                let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
                ended = ended.and(world.send_recv(to, &column, from, &mut next).await);
                column = next;
            }
        }
        ended = ended.and(world.reduce(0, &mut result, Sum).await);
        ended.is_ok() && (rank > 0 || result == product(columns))
    })
}

/// The sum of all by messages: with the neighbour, then with the one two away, four away …
pub(super) fn butterfly(topology: &Topology, bytes: usize) -> Result<Report<bool>, Failed> {
    checked(topology, Timing::PAPER, "butterfly", async |mut world| {
        let (rank, size) = (world.rank(), world.size());
        let mut data = vec![rank as u32; bytes / 4];
        let mut distance = 1;
        while distance < size {
            let mut other = vec![0; data.len()];
            let peer = rank ^ distance;
            if world.send_recv(peer, &data, peer, &mut other).await.is_err() {
                return false;
            }
            data.iter_mut().zip(&other).for_each(|(own, other)| *own += other);
            world.compute(cycles(data.len())).await;
            distance *= 2;
        }
        data.iter().all(|value| *value as usize == size * (size - 1) / 2)
    })
}

/// How the input of a convolution is distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOut {
    /// Windows, one row of a matrix for each value of the output (im2col), as in the paper.
    Windows,
    /// Rows of the input with those around them; each process makes the windows itself.
    Rows,
}

/// Height and width of input, kernel and output of the paper's fourth convolution, and channels.
const INPUT: usize = 36;
const KERNEL: usize = 5;
pub(super) const OUTPUT: usize = INPUT - KERNEL + 1;
const CHANNELS: usize = 3;
/// Values of a window.
pub(super) const WINDOW: usize = KERNEL * KERNEL * CHANNELS;
/// Rows of the output at each process.
const SHARE: usize = OUTPUT / PROCESSES;

fn pixel(row: usize, column: usize, channel: usize) -> f32 {
    ((row * 31 + column * 17 + channel * 7) % 23) as f32 - 11.0
}

fn weight(i: usize) -> f32 {
    (i % 7) as f32 - 3.0
}

/// Row, column and channel of a value of a window, from the window's first one.
fn place(i: usize) -> (usize, usize, usize) {
    (i / CHANNELS / KERNEL, i / CHANNELS % KERNEL, i % CHANNELS)
}

/// 36×36×3 by 5×5×3 without padding: 32×32. Sixteen windows by the kernel are a group: 16×75 by 75×1, a multiply-add per cycle and window.
pub(super) fn convolution(hand_out: HandOut) -> Result<Report<bool>, Failed> {
    let topology = Topology::boards(2).chain();
    checked(&topology, Timing::PAPER, "convolution", async |mut world| {
        let rank = world.rank();
        let window = |at: usize| {
            (0..WINDOW).map(move |i| {
                let (row, column, channel) = place(i);
                pixel(at / OUTPUT + row, at % OUTPUT + column, channel)
            })
        };
        let line = |row: usize| (0..INPUT * CHANNELS).map(move |i| pixel(row, i / CHANNELS, i % CHANNELS));
        let halo = SHARE + KERNEL - 1;
        let (all, length): (Vec<f32>, usize) = match hand_out {
            HandOut::Windows => ((0..OUTPUT * OUTPUT).flat_map(window).collect(), SHARE * OUTPUT * WINDOW),
            HandOut::Rows => {
                let rows = (0..PROCESSES).flat_map(|of| of * SHARE..of * SHARE + halo);
                (rows.flat_map(line).collect(), halo * INPUT * CHANNELS)
            }
        };
        let mut own = vec![0f32; length];
        let mut ended = world.scatter(0, if rank == 0 { &all } else { &[] }, &mut own).await;
        let value = |at: usize, i: usize| match hand_out {
            HandOut::Windows => own[at * WINDOW + i],
            HandOut::Rows => {
                let (row, column, channel) = place(i);
                own[((at / OUTPUT + row) * INPUT + at % OUTPUT + column) * CHANNELS + channel]
            }
        };
        let mut result = vec![0f32; OUTPUT * OUTPUT];
        for at in 0..SHARE * OUTPUT {
            result[rank * SHARE * OUTPUT + at] = (0..WINDOW).map(|i| value(at, i) * weight(i)).sum();
        }
        world.compute(cycles(SHARE * OUTPUT * WINDOW)).await;
        ended = ended.and(world.reduce(0, &mut result, Sum).await);
        let exact = |at: usize| window(at).enumerate().map(|(i, value)| value * weight(i)).sum::<f32>();
        ended.is_ok() && (rank > 0 || result.iter().enumerate().all(|(at, value)| *value == exact(at)))
    })
}
