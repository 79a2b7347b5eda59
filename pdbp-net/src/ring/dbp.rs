//! DBP: a pool of blocks being worked on, of S2 (section 3 of the specification).
//!
//! ```text
//!            columns   0    1    2   …   ws − 1       an element counts the blocks of its super-element;
//!   row of link 0    [ 2 ][ 1 ][   ]    [   ]         the blocks lie with their link, in the order of the columns
//!   row of link 1    [   ][ 4 ][   ]    [   ]
//!                      ▲         ▲
//!                    reader    writer: the tokens (send and copr of SM, decopr and rece of RM)
//! ```
//! The writer fills the elements of one column, closes it and moves on to the next. The reader takes only from closed columns.
//! Rows advance at their own pace: a token passes a column once all its elements are empty.

/// The life cycle of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Blocks enter and leave.
    Expanding,
    /// Blocks only leave: the pool's full number has entered, or its next column is not free.
    Shrinking,
    /// As many have left as have entered.
    Shell,
}

/// A pool.
#[derive(Debug)]
pub(crate) struct Dbp {
    columns: usize,
    /// By row, then by column.
    elements: Box<[u32]>,
    /// Blocks of a column.
    filled: Box<[u32]>,
    /// Blocks that may enter in total: N.
    size: u64,
    /// Blocks that have entered, and that have left.
    cur_in: u64,
    cur_out: u64,
    writer: usize,
    reader: usize,
    state: State,
}

impl Dbp {
    pub(super) fn new(rows: usize, columns: usize, size: u64) -> Self {
        Self {
            columns,
            elements: vec![0; rows * columns].into(),
            filled: vec![0; columns].into(),
            size,
            cur_in: 0,
            cur_out: 0,
            writer: 0,
            reader: 0,
            state: State::Expanding,
        }
    }

    /// Turns a shell into a new pool.
    pub(super) fn begin_anew(&mut self) {
        debug_assert!(self.filled.iter().all(|filled| *filled == 0), "a shell has nothing left");
        (self.cur_in, self.cur_out, self.writer, self.reader) = (0, 0, 0, 0);
        self.state = State::Expanding;
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Blocks of a row.
    pub(super) fn of(&self, row: usize) -> usize {
        let from = row * self.columns;
        let elements = self.elements.get(from..from + self.columns).unwrap_or(&[]);
        elements.iter().map(|count| to_usize(*count)).sum()
    }

    /// Blocks of a row in the column that is being filled.
    pub(super) fn open(&self, row: usize) -> usize {
        let element = self.elements.get(row * self.columns + self.writer);
        element.filter(|_| self.state == State::Expanding).map_or(0, |count| to_usize(*count))
    }

    /// Blocks in the column that is being filled.
    pub(super) fn open_blocks(&self) -> usize {
        let filled = self.filled.get(self.writer).filter(|_| self.state == State::Expanding);
        filled.map_or(0, |filled| to_usize(*filled))
    }

    /// Lets this many blocks of a row enter the column that is being filled.
    pub(super) fn enter(&mut self, row: usize, blocks: u32) {
        let element = self.elements.get_mut(row * self.columns + self.writer);
        if let (Some(element), Some(filled)) = (element, self.filled.get_mut(self.writer)) {
            *element += blocks;
            *filled += blocks;
            self.cur_in += u64::from(blocks);
        }
        if self.cur_in >= self.size {
            self.state = State::Shrinking;
        }
    }

    /// Closes the column that is being filled.
    pub(super) fn close(&mut self) {
        if self.state != State::Expanding || self.filled.get(self.writer) == Some(&0) {
            return;
        }
        let next = (self.writer + 1) % self.columns;
        if self.filled.get(next) == Some(&0) {
            self.writer = next;
        } else {
            self.state = State::Shrinking;
        }
    }

    /// Removes the oldest block of a row.
    pub(super) fn leave(&mut self, row: usize) {
        let columns = (0..self.columns).map(|step| (self.reader + step) % self.columns);
        for column in columns {
            let element = self.elements.get_mut(row * self.columns + column).filter(|element| **element > 0);
            if let (Some(element), Some(filled)) = (element, self.filled.get_mut(column)) {
                *element -= 1;
                *filled -= 1;
                self.cur_out += 1;
                break;
            }
        }
        while self.reader != self.writer && self.filled.get(self.reader) == Some(&0) {
            self.reader = (self.reader + 1) % self.columns;
        }
        if self.state == State::Shrinking && self.cur_in == self.cur_out {
            self.state = State::Shell;
        }
    }

    /// Removes all blocks of a row, to carry them to another pool or to give them up. Returns how many.
    pub(super) fn leave_all(&mut self, row: usize) -> usize {
        let blocks = self.of(row);
        (0..blocks).for_each(|_| self.leave(row));
        blocks
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.cur_in, self.cur_out)
    }
}

fn to_usize(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
