//! The state of a link.

/// The state of the exchange between two nodes.
///
/// ```text
///            restore                 both members, welcomed
///  ┌──────┐ ────────▶ ┌────────────┐ ──────────────────────▶ ┌────┐
///  │ Down │           │ Connecting │                         │ Up │
///  └──────┘           └────────────┘ ◀────────────────────── └────┘
///     ▲ fail              │            one is no member         │
///     └── from any state  └───────────▶ Incompatible ◀──────────┘
///                             settings differ
/// ```
///
/// The [agreement](crate::agreement) decides whether the peer is a member; that outlives the sessions of the link. Everything
/// else is established anew in each session.
///
/// `agreed` comes first so that it is at the same offset in every state: it is checked for each block that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum LinkState {
    /// The transport has lost the link. `agreed`: blocks that still arrive come from a peer with the same settings.
    Down { agreed: bool, member: bool },
    /// The peer's settings differ from this node's. In this session nothing but settings is exchanged.
    Incompatible { member: bool },
    /// Carries only control messages, since the peer or this node is not a member, or the peer has not sent
    /// [`Welcome`](crate::mesp::Control::Welcome).
    Connecting { agreed: bool, member: bool, welcome: bool },
    /// Data is queued for the peer. It leaves, and the peer's data is accepted, once the settings are known to agree.
    Up { agreed: bool },
}

impl Default for LinkState {
    fn default() -> Self {
        Self::Connecting { member: false, welcome: false, agreed: false }
    }
}

impl LinkState {
    /// The node's link to itself, which needs nobody's agreement.
    pub(in crate::engine) const OWN: Self = Self::Up { agreed: true };

    /// The state of a link when the node starts. Nodes that start together regard each other as members.
    pub(in crate::engine) fn at_start(joining: bool) -> Self {
        if joining {
            Self::Connecting { member: false, welcome: false, agreed: false }
        } else {
            Self::Up { agreed: false }
        }
    }

    /// Whether data is exchanged.
    #[inline]
    pub(in crate::engine) fn is_up(self) -> bool {
        matches!(self, Self::Up { .. })
    }

    /// Whether the transport has lost the link.
    #[inline]
    pub(in crate::engine) fn is_down(self) -> bool {
        matches!(self, Self::Down { .. })
    }

    /// Whether the settings differ.
    #[inline]
    pub(in crate::engine) fn is_incompatible(self) -> bool {
        matches!(self, Self::Incompatible { .. })
    }

    /// Whether both the peer and this node are members.
    #[inline]
    pub(in crate::engine) fn is_member(self) -> bool {
        match self {
            Self::Down { member, .. } | Self::Incompatible { member } | Self::Connecting { member, .. } => {
                member
            }
            Self::Up { .. } => true,
        }
    }

    /// Whether the peer is a member that has not yet sent [`Welcome`](crate::mesp::Control::Welcome).
    pub(in crate::engine) fn is_awaited(self) -> bool {
        matches!(self, Self::Connecting { member: true, .. })
    }

    /// Whether data from the peer is accepted: it is a member, and its settings are known to be the same. Data may still arrive
    /// after the link has gone down.
    #[inline]
    pub(in crate::engine) fn takes_data(self) -> bool {
        matches!(self, Self::Up { agreed: true }) || (self.is_member() && self.has_agreed())
    }

    /// Whether the settings are known to be the same.
    #[inline]
    pub(in crate::engine) fn has_agreed(self) -> bool {
        match self {
            // The usual case.
            Self::Up { agreed } => agreed,
            Self::Down { agreed, .. } | Self::Connecting { agreed, .. } => agreed,
            Self::Incompatible { .. } => false,
        }
    }

    /// Whether the peer's settings are not known yet.
    #[inline]
    pub(in crate::engine) fn is_unknown(self) -> bool {
        !self.has_agreed() && !self.is_incompatible()
    }

    /// Notes that the transport has lost the link.
    pub(in crate::engine) fn fail(&mut self) {
        *self = Self::Down { member: self.is_member(), agreed: self.has_agreed() };
    }

    /// Notes that the transport has restored the link: a new session begins.
    pub(in crate::engine) fn restore(&mut self) {
        *self = Self::Connecting { member: self.is_member(), welcome: false, agreed: false };
    }

    /// Sets whether the peer is a member, as decided by the agreement.
    pub(in crate::engine) fn set_member(&mut self, is_member: bool) {
        match self {
            Self::Down { member, .. } | Self::Incompatible { member } => *member = is_member,
            Self::Connecting { welcome, agreed, .. } => *self = Self::connected(is_member, *welcome, *agreed),
            Self::Up { agreed } => *self = Self::connected(is_member, true, *agreed),
        }
    }

    /// Notes that the peer accepts data from this node.
    pub(in crate::engine) fn welcome(&mut self) {
        if let Self::Connecting { member, agreed, .. } = *self {
            *self = Self::connected(member, true, agreed);
        }
    }

    /// Notes that the settings are the same. Returns `false` if that was already known.
    pub(in crate::engine) fn agree(&mut self) -> bool {
        match self {
            Self::Down { agreed, .. } | Self::Connecting { agreed, .. } | Self::Up { agreed } => {
                !core::mem::replace(agreed, true)
            }
            Self::Incompatible { .. } => false,
        }
    }

    /// Notes that the settings differ. A link that is down stays down: in the next session, the peer announces its settings
    /// again.
    pub(in crate::engine) fn differ(&mut self) {
        if !self.is_down() {
            *self = Self::Incompatible { member: self.is_member() };
        }
    }

    fn connected(member: bool, welcome: bool, agreed: bool) -> Self {
        if member && welcome { Self::Up { agreed } } else { Self::Connecting { member, welcome, agreed } }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The facts known about a link, one by one.
    #[derive(Debug)]
    struct Model {
        down: bool,
        member: bool,
        welcome: bool,
        agreed: bool,
        differ: bool,
    }

    impl Model {
        fn apply(&mut self, step: u8) {
            let talks = !self.down && !self.differ;
            match step {
                0 => (self.down, self.differ) = (true, false),
                1 => *self = Self { down: false, welcome: false, agreed: false, differ: false, ..*self },
                2 => self.member = true,
                3 => self.member = false,
                4 => self.welcome |= talks,
                5 => self.agreed |= !self.differ,
                _ => (self.differ, self.agreed) = (!self.down, self.agreed && self.down),
            }
        }
    }

    fn apply(state: &mut LinkState, step: u8) {
        match step {
            0 => state.fail(),
            1 => state.restore(),
            2 => state.set_member(true),
            3 => state.set_member(false),
            4 => state.welcome(),
            5 => _ = state.agree(),
            _ => state.differ(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// The state is equivalent to the facts, in whatever order they become known.
        #[test]
        fn the_state_follows_from_what_is_known(joining: bool, steps in vec(0u8..7, 0..40)) {
            let mut state = LinkState::at_start(joining);
            let mut facts =
                Model { down: false, member: !joining, welcome: !joining, agreed: false, differ: false };
            for step in steps {
                apply(&mut state, step);
                facts.apply(step);
                let Model { down, member, welcome, agreed, differ } = facts;
                prop_assert_eq!(state.is_up(), !down && !differ && member && welcome, "{:?}", state);
                prop_assert_eq!(state.is_down(), down);
                prop_assert_eq!(state.is_member(), member);
                prop_assert_eq!(state.is_incompatible(), differ);
                prop_assert_eq!(state.has_agreed(), agreed);
                prop_assert_eq!(state.is_unknown(), !agreed && !differ);
            }
        }
    }

    #[test]
    fn settings_that_were_known_to_agree_are_no_news() {
        let mut state = LinkState::at_start(false);
        assert!(state.agree());
        assert!(!state.agree());
        state.differ();
        assert!(!state.agree(), "it stays incompatible for the rest of the session");
    }
}
