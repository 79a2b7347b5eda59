//! Switches, the endpoints attached to them, and the links between them.

use std::fmt;
use std::str::FromStr;

/// Endpoints per board, each with one process.
pub const BOARD: usize = 4;
/// Maximum ports of a switch, as in switches on the market.
pub const PORTS: usize = 18;
/// Multicast masks of a switch, as in switches on the market: the number of groups whose calls it can perform.
pub const MASKS: usize = 40;
/// Maximum endpoints of a fabric, and maximum switches.
pub const ENDPOINTS: usize = 1 << 15;

/// Boards, switches and links.
///
/// Switches are numbered from 0 in the order in which they are added. Errors are reported by [`check`](Self::check) and when a fabric is
/// made: the first wrong step.
///
/// ```
/// use pdbp_sim::rapidio::Topology;
///
/// let topology = Topology::boards(16).tree(4); // sixteen boards, four switches above them, and one above these
/// assert_eq!((topology.endpoints(), topology.switches()), (64, 21));
/// assert!(topology.check().is_ok());
/// assert!(Topology::boards(2).check().unwrap_err().to_string().contains("switch 1"), "they are not linked");
/// ```
///
/// The same as text: a list of steps, `boards=N`, `bare=N`, `chain`, `ring`, `tree=D`, `link=A-B` or `link=A-B/WEIGHT`, `endpoint=S`,
/// `up_down`.
///
/// ```
/// # use pdbp_sim::rapidio::Topology;
/// assert_eq!("boards=4,ring".parse(), Ok(Topology::boards(4).ring()));
/// let wrong = "boards=4,rink".parse::<Topology>().unwrap_err();
/// assert!(wrong.to_string().contains("rink"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The switch of each endpoint.
    endpoints: Vec<usize>,
    switches: usize,
    links: Vec<Link>,
    /// Whether messages use links that are not in the tree.
    up_down: bool,
    wrong: Option<TopologyError>,
}

/// A link between two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// One end.
    pub a: usize,
    /// The other.
    pub b: usize,
    /// Its weight in the minimum spanning tree.
    pub weight: u32,
}

/// Why a topology is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyError {
    /// There is no endpoint.
    Empty,
    /// There are more endpoints or switches than there are ids.
    TooLarge {
        /// "endpoints" or "switches".
        what: &'static str,
        /// How many.
        count: usize,
    },
    /// A step of the text that cannot be parsed.
    Step {
        /// Which, from 1 on.
        number: usize,
        /// As given.
        step: String,
    },
    /// A step of the text that is invalid at this place.
    At {
        /// Which, from 1 on.
        number: usize,
        /// As given.
        step: String,
        /// Why.
        error: Box<Self>,
    },
    /// A link or an endpoint at a switch that does not exist.
    NoSwitch {
        /// Its number.
        switch: usize,
        /// How many there are.
        switches: usize,
    },
    /// A link from a switch to itself.
    LinkToItself {
        /// The switch.
        switch: usize,
    },
    /// A second link between two switches.
    LinkedTwice {
        /// One.
        a: usize,
        /// The other.
        b: usize,
    },
    /// More links and endpoints than a switch has ports.
    TooManyPorts {
        /// The switch.
        switch: usize,
        /// How many it would need.
        ports: usize,
    },
    /// A switch that is not connected to the others.
    Unreachable {
        /// The switch.
        switch: usize,
    },
    /// A tree with a degree below 2.
    Degree {
        /// As given.
        degree: usize,
    },
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the fabric has no endpoints; add a board"),
            Self::TooLarge { what, count } => {
                write!(f, "{count} {what}; a fabric has at most {ENDPOINTS}, so leave some out")
            }
            Self::Step { number, step } => write!(
                f,
                "step {number}: \"{step}\" is not a step of a topology; there are boards=N, bare=N, chain, ring, tree=D, link=A-B, \
                 link=A-B/WEIGHT, endpoint=S and up_down"
            ),
            Self::At { number, step, error } => write!(f, "step {number}, \"{step}\": {error}"),
            Self::NoSwitch { switch, switches: 0 } => {
                write!(f, "switch {switch} does not exist, since the fabric has none yet; add boards first")
            }
            Self::NoSwitch { switch, switches } => {
                write!(
                    f,
                    "there is no switch {switch}, only 0 to {}; name one of them, or add boards before",
                    switches - 1
                )
            }
            Self::LinkToItself { switch } => {
                write!(f, "a link from switch {switch} to itself; name another one")
            }
            Self::LinkedTwice { a, b } => {
                write!(f, "switches {a} and {b} are linked twice; leave out one link")
            }
            Self::TooManyPorts { switch, ports } => {
                write!(
                    f,
                    "switch {switch} would need {ports} ports but has only {PORTS}; put a switch in between"
                )
            }
            Self::Unreachable { switch } => {
                write!(f, "switch {switch} is not connected; link it, by .chain() for example")
            }
            Self::Degree { degree } => write!(f, "a tree of degree {degree}; give 2 or more"),
        }
    }
}

impl std::error::Error for TopologyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::At { error, .. } = self { Some(&**error) } else { None }
    }
}

impl Topology {
    /// Boards of four DSPs and a switch each, not linked yet.
    pub fn boards(boards: usize) -> Self {
        let (endpoints, links) = (Vec::new(), Vec::new());
        let none = Self { endpoints, switches: 0, links, up_down: false, wrong: None };
        none.more_boards(boards)
    }

    fn more_boards(mut self, boards: usize) -> Self {
        let first = self.switches;
        self = self.bare(boards);
        let added = (first..self.switches).flat_map(|switch| [switch; BOARD]);
        self.endpoints.extend(added);
        self
    }

    /// Adds switches without endpoints.
    #[must_use]
    pub fn bare(mut self, switches: usize) -> Self {
        let count = self.switches.saturating_add(switches);
        if count > ENDPOINTS {
            return self.fail(TopologyError::TooLarge { what: "switches", count });
        }
        self.switches = count;
        self
    }

    /// Links each switch with the next.
    #[must_use]
    pub fn chain(self) -> Self {
        let last = self.switches.saturating_sub(1);
        (0..last).fold(self, |topology, switch| topology.link(switch, switch + 1))
    }

    /// Links each switch with the next and the last with the first, if there are more than two.
    #[must_use]
    pub fn ring(self) -> Self {
        let switches = self.switches;
        let chain = self.chain();
        if switches > 2 { chain.link(switches - 1, 0) } else { chain }
    }

    /// Adds a switch above every `degree` switches, level by level, until there is a single one at the top.
    #[must_use]
    pub fn tree(mut self, degree: usize) -> Self {
        if degree < 2 {
            return self.fail(TopologyError::Degree { degree });
        }
        let mut level = 0..self.switches;
        while level.len() > 1 {
            let above = level.len().div_ceil(degree);
            let start = self.switches;
            self = self.bare(above);
            self = level.clone().zip(0..).fold(self, |topology, (switch, place): (usize, usize)| {
                topology.link(start + place / degree, switch)
            });
            level = start..start + above;
        }
        self
    }

    /// Links two switches.
    #[must_use]
    pub fn link(self, a: usize, b: usize) -> Self {
        self.link_of_weight(a, b, 1)
    }

    /// Links two switches by a link of this weight, which the spanning tree minimises. Other links have weight 1.
    #[must_use]
    pub fn link_of_weight(mut self, a: usize, b: usize, weight: u32) -> Self {
        let switches = self.switches;
        if let Some(switch) = [a, b].into_iter().find(|switch| *switch >= switches) {
            return self.fail(TopologyError::NoSwitch { switch, switches });
        }
        if a == b {
            return self.fail(TopologyError::LinkToItself { switch: a });
        }
        self.links.push(Link { a, b, weight });
        self
    }

    /// Attaches one more endpoint to a switch.
    #[must_use]
    pub fn endpoint(mut self, switch: usize) -> Self {
        if switch >= self.switches {
            let switches = self.switches;
            return self.fail(TopologyError::NoSwitch { switch, switches });
        }
        self.endpoints.push(switch);
        self
    }

    /// Lets messages use all links rather than only those of the tree, by up*/down* routing: up towards the root until a route down
    /// leads to the destination, then down, and never up again, which excludes deadlock. Collectives stay on the tree.
    ///
    /// ```
    /// use pdbp_sim::rapidio::{Topology, Tree};
    ///
    /// let ring = Topology::boards(6).ring();
    /// let (one, all) = (Tree::new(&ring)?, Tree::new(&ring.up_down())?);
    /// // The tree leaves out the link of switches 3 and 4.
    /// assert_eq!((one.route(12, 20), all.route(12, 20)), (vec![3, 2, 1, 0, 5, 4], vec![3, 4]));
    /// # Ok::<(), pdbp_sim::rapidio::TopologyError>(())
    /// ```
    #[must_use]
    pub fn up_down(mut self) -> Self {
        self.up_down = true;
        self
    }

    fn fail(mut self, error: TopologyError) -> Self {
        self.wrong.get_or_insert(error);
        self
    }

    /// The number of endpoints.
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// The number of switches.
    pub fn switches(&self) -> usize {
        self.switches
    }

    /// The links between switches, in the order in which they were added.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The switch of each endpoint, in the order in which they were attached.
    pub fn switch_of(&self) -> &[usize] {
        &self.endpoints
    }

    /// Whether messages may use links that are not in the tree.
    pub fn takes_all_links(&self) -> bool {
        self.up_down
    }

    /// Checks that the topology is valid.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), TopologyError> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let Some(first) = self.endpoints.first() else { return Err(TopologyError::Empty) };
        if self.endpoints.len() > ENDPOINTS {
            return Err(TopologyError::TooLarge { what: "endpoints", count: self.endpoints.len() });
        }
        let mut pairs: Vec<_> =
            self.links.iter().map(|link| (link.a.min(link.b), link.a.max(link.b))).collect();
        pairs.sort_unstable();
        if let Some((a, b)) = pairs.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]) {
            return Err(TopologyError::LinkedTwice { a, b });
        }
        let mut ports = vec![0; self.switches];
        let ends = self.links.iter().flat_map(|link| [link.a, link.b]);
        self.endpoints.iter().copied().chain(ends).for_each(|switch| ports[switch] += 1);
        if let Some((switch, ports)) = ports.into_iter().enumerate().find(|(_, ports)| *ports > PORTS) {
            return Err(TopologyError::TooManyPorts { switch, ports });
        }
        let mut reached = vec![false; self.switches];
        reached[*first] = true;
        let mut next = vec![*first];
        let neighbours = self.neighbours();
        while let Some(switch) = next.pop() {
            for other in &neighbours[switch] {
                if !std::mem::replace(&mut reached[*other], true) {
                    next.push(*other);
                }
            }
        }
        let unreached = reached.iter().position(|reached| !reached);
        unreached.map_or(Ok(()), |switch| Err(TopologyError::Unreachable { switch }))
    }

    /// The neighbours of each switch.
    fn neighbours(&self) -> Vec<Vec<usize>> {
        let mut neighbours = vec![Vec::new(); self.switches];
        for link in &self.links {
            neighbours[link.a].push(link.b);
            neighbours[link.b].push(link.a);
        }
        neighbours
    }
}

impl FromStr for Topology {
    type Err = TopologyError;

    /// Parses the steps one by one. [`check`](Topology::check) reports whether the whole is valid.
    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let mut steps = text.split(',').map(str::trim).zip(1..);
        steps.try_fold(Self::boards(0), |topology, (step, number)| {
            let named = || step.to_owned();
            let topology =
                topology.step(step).ok_or_else(|| TopologyError::Step { number, step: named() })?;
            match topology.wrong {
                Some(error) => Err(TopologyError::At { number, step: named(), error: Box::new(error) }),
                None => Ok(topology),
            }
        })
    }
}

impl Topology {
    /// Performs a step given as text; `None` if it cannot be parsed.
    fn step(self, step: &str) -> Option<Self> {
        let number = |text: &str| text.parse::<usize>().ok();
        Some(match step.split_once('=') {
            None if step == "chain" => self.chain(),
            None if step == "ring" => self.ring(),
            None if step == "up_down" => self.up_down(),
            Some(("boards", boards)) => self.more_boards(number(boards)?),
            Some(("bare", switches)) => self.bare(number(switches)?),
            Some(("tree", degree)) => self.tree(number(degree)?),
            Some(("endpoint", switch)) => self.endpoint(number(switch)?),
            Some(("link", ends)) => {
                let (ends, weight) = ends.split_once('/').unwrap_or((ends, "1"));
                let (a, b) = ends.split_once('-')?;
                self.link_of_weight(number(a)?, number(b)?, weight.parse().ok()?)
            }
            _ => return None,
        })
    }
}
