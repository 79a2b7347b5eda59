//! DBPR: the ring of pools of S2. The writer fills the last pool; readers take from all of them, in order within each row.

use std::collections::VecDeque;

use super::dbp::{Dbp, State};

/// Columns of a pool.
const COLUMNS: usize = 8;
/// Maximum pools at a time. Beyond that, the rest of the oldest is carried into the newest.
pub(super) const MOST: usize = 3;

/// A ring of pools with a row for each link, for one direction: SM or RM.
#[derive(Debug)]
pub(crate) struct Dbpr {
    rows: usize,
    size: u64,
    pools: VecDeque<Dbp>,
    /// The memory of a shell.
    spare: Option<Dbp>,
    /// Blocks of each row.
    blocks: Box<[usize]>,
}

impl Dbpr {
    /// For `rows` links, with pools of `size` blocks: at least twice what can be in the ring at a time.
    pub(crate) fn new(rows: usize, size: usize) -> Self {
        let size = u64::try_from(size).unwrap_or(u64::MAX).max(1);
        Self { rows, size, pools: VecDeque::new(), spare: None, blocks: vec![0; rows].into() }
    }

    /// Lets a block of a row enter the column that is being filled.
    pub(crate) fn enter(&mut self, row: usize) {
        if self.pools.back().is_none_or(|pool| pool.state() != State::Expanding) {
            self.link();
        }
        if let (Some(pool), Some(blocks)) = (self.pools.back_mut(), self.blocks.get_mut(row)) {
            pool.enter(row, 1);
            *blocks += 1;
        }
    }

    /// Puts a pool into the ring.
    fn link(&mut self) {
        let pool = self.spare.take().unwrap_or_else(|| Dbp::new(self.rows, COLUMNS, self.size));
        self.pools.push_back(pool);
        if self.pools.len() > MOST {
            self.carry();
        }
    }

    /// Moves all blocks of every row that has some in the oldest pool to the newest, in the same order, so that a stalled row keeps no
    /// pool alive. Only numbers move.
    fn carry(&mut self) {
        let Some(mut newest) = self.pools.pop_back() else { return };
        for row in 0..self.rows {
            if self.pools.front().is_none_or(|oldest| oldest.of(row) == 0) {
                continue;
            }
            let carried: usize = self.pools.iter_mut().map(|pool| pool.leave_all(row)).sum();
            newest.enter(row, u32::try_from(carried).unwrap_or(u32::MAX));
        }
        // They come from closed columns.
        newest.close();
        self.pools.push_back(newest);
        self.unlink_shells();
    }

    /// Takes the shells out of the ring.
    fn unlink_shells(&mut self) {
        while let Some(at) = self.pools.iter().position(|pool| pool.state() == State::Shell) {
            if let Some(mut shell) = self.pools.remove(at) {
                shell.begin_anew();
                self.spare = Some(shell);
            }
        }
    }

    /// Closes the column that is being filled.
    pub(crate) fn close(&mut self) {
        if let Some(pool) = self.pools.back_mut() {
            pool.close();
        }
    }

    /// Blocks in the column that is being filled.
    pub(crate) fn open_blocks(&self) -> usize {
        self.pools.back().map_or(0, Dbp::open_blocks)
    }

    /// Blocks of a row in that column: its super-element.
    pub(crate) fn open(&self, row: usize) -> usize {
        self.pools.back().map_or(0, |pool| pool.open(row))
    }

    /// Blocks of a row in closed columns, which a reader may take.
    pub(crate) fn closed(&self, row: usize) -> usize {
        self.blocks.get(row).copied().unwrap_or(0) - self.open(row)
    }

    /// Removes the oldest block of a row.
    pub(crate) fn leave(&mut self, row: usize) {
        let Some(pool) = self.pools.iter_mut().find(|pool| pool.of(row) > 0) else { return };
        pool.leave(row);
        let is_shell = pool.state() == State::Shell;
        if let Some(blocks) = self.blocks.get_mut(row) {
            *blocks -= 1;
        }
        if is_shell {
            self.unlink_shells();
        }
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Removes all blocks of a row.
    pub(crate) fn leave_all(&mut self, row: usize) {
        self.pools.iter_mut().for_each(|pool| _ = pool.leave_all(row));
        if let Some(blocks) = self.blocks.get_mut(row) {
            *blocks = 0;
        }
        self.unlink_shells();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROWS: usize = 3;
    const PER_ROW: usize = 20;

    #[derive(Clone, Copy, Debug)]
    enum Operation {
        Enter(usize),
        Close,
        /// This many blocks of a row leave, if closed columns hold as many.
        Leave(usize, usize),
        Purge(usize),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            20 => (0..ROWS).prop_map(Operation::Enter),
            8 => Just(Operation::Close),
            // Row 0 is slow.
            20 => (1..ROWS, 1..4usize).prop_map(|(row, blocks)| Operation::Leave(row, blocks)),
            1 => Just(Operation::Leave(0, 1)),
            1 => (0..ROWS).prop_map(Operation::Purge),
        ]
    }

    /// A block as the oracle sees it: its number in its row, and whether its column is closed.
    type Oracle = [VecDeque<(u64, bool)>; ROWS];

    struct World {
        ring: Dbpr,
        oracle: Oracle,
        next: [u64; ROWS],
        taken: [u64; ROWS],
    }

    impl World {
        fn new() -> Self {
            let ring = Dbpr::new(ROWS, 2 * ROWS * PER_ROW);
            Self { ring, oracle: Oracle::default(), next: [0; ROWS], taken: [0; ROWS] }
        }

        fn run(&mut self, operation: Operation) {
            match operation {
                Operation::Enter(row) if self.oracle[row].len() < PER_ROW => {
                    // A full pool takes no more, which closes its open column.
                    if self.ring.pools.back().is_some_and(|pool| pool.state() != State::Expanding) {
                        self.close_oracle();
                    }
                    self.ring.enter(row);
                    self.oracle[row].push_back((self.next[row], false));
                    self.next[row] += 1;
                }
                Operation::Enter(_) => {}
                Operation::Close => {
                    self.ring.close();
                    self.close_oracle();
                }
                Operation::Leave(row, blocks) => {
                    for _ in 0..blocks.min(self.ring.closed(row)) {
                        let (number, _) = self.oracle[row].pop_front().unwrap();
                        assert!(number >= self.taken[row], "in order, and once");
                        self.taken[row] = number + 1;
                        self.ring.leave(row);
                    }
                }
                Operation::Purge(row) => {
                    self.ring.leave_all(row);
                    self.oracle[row].clear();
                }
            }
            if self.ring.pools.back().is_some_and(|pool| pool.state() != State::Expanding) {
                self.close_oracle();
            }
        }

        fn close_oracle(&mut self) {
            self.oracle.iter_mut().flatten().for_each(|(_, closed)| *closed = true);
        }

        fn check(&self) {
            let mut inside = 0;
            for row in 0..ROWS {
                let blocks = &self.oracle[row];
                let closed = blocks.iter().filter(|(_, closed)| *closed).count();
                assert_eq!(self.ring.closed(row), closed, "row {row}");
                assert_eq!(self.ring.open(row), blocks.len() - closed, "row {row}");
                assert_eq!(self.ring.pools.iter().map(|pool| pool.of(row)).sum::<usize>(), blocks.len());
                inside += blocks.len() as u64;
            }
            let entered: u64 = self.ring.pools.iter().map(|pool| pool.counts().0).sum();
            let left: u64 = self.ring.pools.iter().map(|pool| pool.counts().1).sum();
            assert_eq!(entered - left, inside, "Curin less Curout is what is there");
            assert!(self.ring.pools.len() <= MOST, "{} pools", self.ring.pools.len());
            let states: Vec<_> = self.ring.pools.iter().map(Dbp::state).collect();
            assert!(!states.contains(&State::Shell), "shells are taken out");
            let old = states.split_last().map_or(&[][..], |(_, old)| old);
            assert!(
                old.iter().all(|state| *state == State::Shrinking),
                "only the last takes more: {states:?}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Against queues: each block leaves once, in order within its row, the counts add up, shells vanish, and
        /// a stalled row keeps no pool alive.
        #[test]
        fn a_ring_is_as_good_as_queues(operations in prop::collection::vec(operation(), 0..600)) {
            let mut world = World::new();
            for operation in operations {
                world.run(operation);
                world.check();
            }
        }
    }

    /// The life of a pool: expanding until N blocks have entered, then shrinking until they have left, then a shell.
    #[test]
    fn a_pool_expands_shrinks_and_is_a_shell() {
        let mut pool = Dbp::new(1, 4, 3);
        for _ in 0..3 {
            assert_eq!(pool.state(), State::Expanding);
            pool.enter(0, 1);
        }
        for _ in 0..3 {
            assert_eq!(pool.state(), State::Shrinking);
            pool.leave(0);
        }
        assert_eq!((pool.state(), pool.counts()), (State::Shell, (3, 3)));
    }

    #[test]
    fn a_pool_whose_next_column_is_not_free_shrinks() {
        let mut pool = Dbp::new(2, 4, 100);
        for _ in 0..4 {
            pool.enter(0, 1);
            pool.enter(1, 1);
            pool.leave(1);
            pool.close();
        }
        assert_eq!(pool.state(), State::Shrinking, "row 0 has something in the first column");
        (0..4).for_each(|_| pool.leave(0));
        assert_eq!(pool.state(), State::Shell);
    }

    /// While one row is stalled, any number of blocks of others pass.
    #[test]
    fn a_stalled_row_is_carried_and_holds_nobody_up() {
        let mut ring = Dbpr::new(2, 80);
        (0..5).for_each(|_| ring.enter(0));
        ring.close();
        for passed in 0..10_000 {
            ring.enter(1);
            ring.close();
            assert_eq!((ring.closed(0), ring.closed(1)), (5, 1), "after {passed}");
            ring.leave(1);
            assert!(ring.pools.len() <= MOST);
        }
        (0..5).for_each(|_| ring.leave(0));
        assert_eq!(ring.closed(0), 0);
    }
}
