//! What sequences keep on the device between steps, behind one interface for all of it.
//!
//! There are two kinds. *Blocks* hold keys and values: so many rows per token, appended to, valid up to any length. A *slot* holds the
//! recurrent state of one sequence: a fixed number of bytes, valid at one position only. A model has blocks, and slots if it has
//! recurrent layers. The scheduler gives each sequence a [`SequenceState`] and calls the [`StateStore`]:
//!
//! | operation | blocks | slots |
//! |---|---|---|
//! | grow | append to the table | – |
//! | copy, fork | share; copy a partial block before writing to it | share; the next step writes to another slot |
//! | snapshot | a full block, or the last one of a text, listed in the prefix cache | a step also writes to a slot that is listed there |
//! | restore | share cached blocks, one of them in part | the next step reads the snapshot |
//! | roll back | a shorter length; wrong rows are overwritten | keep the slot that was written before the drafts |
//!
//! So the device copies no slots: each step says which slot a sequence's state is read from, and after which of its tokens it is
//! written where ([`Batch::push_state`]). Both kinds are cached under one budget of bytes, and given up in the order of their last use.

mod saved;

pub(crate) use saved::Restored;

use crate::cache_events::CacheEvent;
use crate::pool::Pool;
use crate::prefix_cache::{PrefixCache, ROOT};
use crate::runner::{BlockCopy, RunnerInfo, SlotSizes};
use realizar_compute::{Batch, StateWrite};

/// A sequence's part of what is on the device.
#[derive(Debug)]
pub(crate) struct SequenceState {
    /// Its block table.
    pub(crate) blocks: Vec<u32>,
    /// Blocks already offered to the prefix cache, and the node of the last of them; `None` if it cannot go on from there.
    n_offered: usize,
    node: Option<u64>,
    /// The slot with the state after all launched positions; `None` at position 0.
    slot: Option<u32>,
    /// The slot that the step being scheduled writes to, if that is another.
    next: Option<u32>,
    /// The slot with the state after the drafts of a step in flight.
    drafted: Option<u32>,
    /// A snapshot before the last token of the prompt, for the other choices of the request.
    fork: Option<u32>,
    /// Snapshots that steps have written, or will, and that are not yet offered to the prefix cache; by position.
    unlisted: Vec<Snapshot>,
    /// The listed snapshot that the next one replaces, and its node.
    tail: Option<(u32, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Snapshot {
    position: usize,
    slot: u32,
    /// Later snapshots of the sequence replace it.
    is_tail: bool,
}

/// Where a sequence can begin to compute: what is there of the positions before.
#[derive(Debug, Default)]
pub(crate) struct Prefix {
    pub(crate) blocks: Vec<u32>,
    /// Positions that can be skipped.
    pub(crate) n_tokens: usize,
    /// The node of the last block, if all are from the prefix cache.
    node: Option<u64>,
    /// The state after these positions, if there are any and the model has recurrent layers.
    slot: Option<u32>,
}

/// How much of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    pub(crate) blocks: usize,
    pub(crate) slots: usize,
}

/// The positions that a step computes of a sequence.
pub(crate) struct Span {
    /// The first.
    pub(crate) start: usize,
    /// The end of those whose tokens are certain; drafts follow.
    pub(crate) certain: usize,
    pub(crate) end: usize,
    pub(crate) n_prompt: usize,
    /// Whether the text is complete at `certain`: its next token is chosen there.
    pub(crate) completes: bool,
    /// The position from which other choices of the request will go on, if they wait for it.
    pub(crate) fork_at: Option<usize>,
}

/// What the store has done since it was made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StateCounters {
    pub(crate) evicted_blocks: u64,
    pub(crate) listed_snapshots: u64,
    pub(crate) evicted_snapshots: u64,
}

/// All blocks and slots, and what the prefix cache knows of them.
pub(crate) struct StateStore {
    block_size: usize,
    /// Whether sequences find what others have computed.
    reuse: bool,
    /// `None` without recurrent layers.
    sizes: Option<SlotSizes>,
    blocks: Pool,
    slots: Pool,
    cache: PrefixCache,
    /// Counts releases, to compare the last uses of both kinds.
    clock: u64,
    /// Given up by sequences, but still read by the step being scheduled.
    read_blocks: Vec<u32>,
    read_slots: Vec<u32>,
    writes: Vec<StateWrite>,
    counters: StateCounters,
}

impl Default for SequenceState {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            n_offered: 0,
            node: Some(ROOT),
            slot: None,
            next: None,
            drafted: None,
            fork: None,
            unlisted: Vec::new(),
            tail: None,
        }
    }
}

impl SequenceState {
    /// Whether it holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.slots().next().is_none()
    }

    /// All slots that it references.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        let unlisted = self.unlisted.iter().map(|s| s.slot);
        [self.slot, self.next, self.drafted, self.fork].into_iter().flatten().chain(unlisted)
    }
}

impl Prefix {
    /// All slots that it references.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.slot.into_iter()
    }

    /// A sequence that goes on from here. The references taken by [`StateStore::retain`] become the sequence's.
    pub(crate) fn into_state(self, block_size: usize) -> SequenceState {
        let (n_offered, node) = match self.node {
            Some(node) => (self.n_tokens / block_size, node),
            None => (0, ROOT),
        };
        SequenceState {
            blocks: self.blocks,
            n_offered,
            node: Some(node),
            slot: self.slot,
            ..SequenceState::default()
        }
    }
}

impl StateStore {
    /// All that a runner has, free. `reuse`: whether sequences find what others have computed.
    ///
    /// # Panics
    /// Without room for one sequence.
    pub(crate) fn new(info: &RunnerInfo, reuse: bool) -> Self {
        assert!(info.n_blocks > 0 && info.block_size > 0 && info.max_seq_len() > 0, "no room: {info:?}");
        if let Some(sizes) = info.slots {
            // A sequence that begins reads one and writes another.
            assert!(sizes.n_slots >= 2 && sizes.block_bytes > 0 && sizes.slot_bytes > 0, "{sizes:?}");
        }
        let n_slots = info.slots.map_or(0, |s| s.n_slots);
        Self {
            block_size: info.block_size,
            reuse,
            sizes: info.slots,
            blocks: Pool::new(info.n_blocks),
            slots: Pool::new(n_slots),
            cache: PrefixCache::new(info.n_blocks, info.block_size, n_slots),
            clock: 0,
            read_blocks: Vec::new(),
            read_slots: Vec::new(),
            writes: Vec::new(),
            counters: StateCounters::default(),
        }
    }

    /// Blocks in use, idle in the prefix cache, and free; together all.
    pub(crate) fn n_blocks(&self) -> (usize, usize, usize) {
        (self.blocks.n_in_use(), self.blocks.n_idle(), self.blocks.n_free())
    }

    /// Slots in use, idle in the prefix cache, and free; together all.
    pub(crate) fn n_slots(&self) -> (usize, usize, usize) {
        (self.slots.n_in_use(), self.slots.n_idle(), self.slots.n_free())
    }

    pub(crate) fn counters(&self) -> StateCounters {
        self.counters
    }

    /// Has the prefix cache record its changes from now on, after all that is there.
    pub(crate) fn record_cache(&mut self) {
        self.cache.record();
    }

    /// What the prefix cache recorded since the last call.
    pub(crate) fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.cache.take_events()
    }

    // Room.

    /// What a sequence needs besides blocks for its positions in order to begin.
    pub(crate) fn to_begin(&self) -> usize {
        usize::from(self.sizes.is_some())
    }

    /// Whether so much can be handed out.
    pub(crate) fn has_room(&self, need: Need) -> bool {
        let used = Need { blocks: self.blocks.n_in_use(), slots: self.slots.n_in_use() };
        self.has_room_beside(used, need)
    }

    /// Whether so much could be handed out if no more than `used` were in use.
    pub(crate) fn has_room_beside(&self, used: Need, need: Need) -> bool {
        let (blocks, slots) = (used.blocks + need.blocks, used.slots + need.slots);
        blocks <= self.blocks.len() && slots <= self.slots.len() && self.bytes(blocks, slots) <= self.budget()
    }

    /// How many blocks can be handed out besides `need`; `None` if not even that can.
    pub(crate) fn room_besides(&self, need: Need) -> Option<usize> {
        if !self.has_room(need) {
            return None;
        }
        let (blocks, slots) = (self.blocks.n_in_use() + need.blocks, self.slots.n_in_use() + need.slots);
        let room = self.blocks.len() - blocks;
        Some(match self.sizes {
            Some(sizes) => room.min((sizes.budget_bytes - self.bytes(blocks, slots)) / sizes.block_bytes),
            None => room,
        })
    }

    fn budget(&self) -> usize {
        self.sizes.map_or(0, |s| s.budget_bytes)
    }

    fn bytes(&self, blocks: usize, slots: usize) -> usize {
        self.sizes.map_or(0, |s| blocks * s.block_bytes + slots * s.slot_bytes)
    }

    /// Gives up what was unused for longest, until one more block or slot is free and within the budget.
    fn evict_for(&mut self, need: Need) {
        loop {
            let blocks = self.blocks.len() - self.blocks.n_free() + need.blocks;
            let slots = self.slots.len() - self.slots.n_free() + need.slots;
            let (lacks_block, lacks_slot) = (blocks > self.blocks.len(), slots > self.slots.len());
            if !lacks_block && !lacks_slot && self.bytes(blocks, slots) <= self.budget() {
                return;
            }
            let (block, slot) = (self.blocks.longest_idle(), self.slots.longest_idle());
            match (block.filter(|_| !lacks_slot), slot.filter(|_| !lacks_block)) {
                (Some((_, block)), None) => self.evict_block(block),
                (None, Some((_, slot))) => self.evict_slot(slot),
                (Some((since, block)), Some((slot_since, slot))) => match since <= slot_since {
                    true => self.evict_block(block),
                    false => self.evict_slot(slot),
                },
                (None, None) => unreachable!("room was made before"),
            }
        }
    }

    fn evict_block(&mut self, block: u32) {
        let snapshot = self.cache.remove(block);
        self.blocks.forget(block);
        self.counters.evicted_blocks += 1;
        if let Some(slot) = snapshot {
            // Nothing leads to it any more.
            self.slots.forget(slot);
            self.counters.evicted_snapshots += 1;
        }
    }

    fn evict_slot(&mut self, slot: u32) {
        self.cache.remove_snapshot(slot);
        self.slots.forget(slot);
        self.counters.evicted_snapshots += 1;
    }

    fn allocate_block(&mut self) -> u32 {
        self.evict_for(Need { blocks: 1, slots: 0 });
        self.blocks.take_free().expect("room was made before")
    }

    fn allocate_slot(&mut self) -> u32 {
        self.evict_for(Need { blocks: 0, slots: 1 });
        self.slots.take_free().expect("room was made before")
    }

    /// A slot for what is useful and not needed.
    fn spare_slot(&mut self) -> Option<u32> {
        self.has_room(Need { blocks: 0, slots: 1 }).then(|| self.allocate_slot())
    }

    // Beginning and end.

    /// The longest beginning of `tokens` that a sequence can go on from with all kinds of its state: the cached blocks, and what the text
    /// shares of one more; for a model with recurrent layers, the blocks up to the last one that has a snapshot.
    pub(crate) fn find(&self, tokens: &[u32], salt: Option<u64>) -> Prefix {
        let mut prefix = Prefix { node: Some(ROOT), ..Prefix::default() };
        if !self.reuse {
            return prefix;
        }
        prefix.node = Some(self.cache.lookup(&mut prefix.blocks, tokens, salt));
        if self.sizes.is_some() {
            let n =
                prefix.blocks.iter().rposition(|&b| self.cache.snapshot(b).is_some()).map_or(0, |i| i + 1);
            prefix.blocks.truncate(n);
            let last = prefix.blocks.last();
            prefix.slot = last.and_then(|&b| self.cache.snapshot(b));
            prefix.node = last.map_or(Some(ROOT), |&b| self.cache.node(b));
        }
        prefix.n_tokens = prefix.blocks.len() * self.block_size;
        let rest = &tokens[prefix.n_tokens..];
        if let (None, Some(node)) = (self.sizes, prefix.node)
            && let Some((block, n)) = self.cache.lookup_part(node, rest, salt)
        {
            prefix.blocks.push(block);
            prefix.n_tokens += n;
        }
        prefix
    }

    /// Gives up the block of a retained prefix that is shared in part. Returns false if there is none.
    pub(crate) fn release_part(&mut self, prefix: &mut Prefix) -> bool {
        let n_full = prefix.n_tokens / self.block_size;
        let has_part = prefix.node.is_some() && prefix.blocks.len() > n_full;
        for block in prefix.blocks.drain(if has_part { n_full } else { prefix.blocks.len() }..) {
            self.clock += 1;
            self.blocks.release(block, self.clock);
            prefix.n_tokens = n_full * self.block_size;
        }
        has_part
    }

    /// The first `n` positions of another choice of the same request, if they can be shared.
    pub(crate) fn find_fork(&self, first: &SequenceState, n: usize) -> Option<Prefix> {
        let slot = first.fork.filter(|_| n > 0);
        (self.sizes.is_none() || n == 0 || slot.is_some()).then(|| Prefix {
            blocks: first.blocks[..n.div_ceil(self.block_size)].to_vec(),
            n_tokens: n,
            node: None,
            slot,
        })
    }

    /// Adds references to all that a prefix has.
    pub(crate) fn retain(&mut self, prefix: &Prefix) {
        prefix.blocks.iter().for_each(|&b| self.blocks.retain(b));
        prefix.slots().for_each(|s| self.slots.retain(s));
    }

    /// Drops the references of [`StateStore::retain`].
    pub(crate) fn release_prefix(&mut self, prefix: Prefix) {
        self.release(prefix.into_state(self.block_size));
    }

    /// Gives up all that a sequence has. Steps in flight may still write to it, but before any step that gets it next.
    pub(crate) fn release(&mut self, state: SequenceState) {
        state.slots().for_each(|s| self.release_slot(s));
        // Children before parents, so that the prefix cache gives up the end of a text before its beginning.
        for &block in state.blocks.iter().rev() {
            self.clock += 1;
            self.blocks.release(block, self.clock);
            if let Some(slot) = self.cache.snapshot(block) {
                self.slots.touch(slot, self.clock);
            }
        }
    }

    fn release_slot(&mut self, slot: u32) {
        self.clock += 1;
        self.slots.release(slot, self.clock);
    }

    // A step.

    /// What a sequence needs to write at position `start`, besides blocks for new positions: copies of what others see too.
    pub(crate) fn to_write(&self, state: &SequenceState, start: usize) -> Need {
        let is_partial = !start.is_multiple_of(self.block_size);
        let copies = is_partial && self.blocks.is_shared(state.blocks[start / self.block_size]);
        let moves = self.sizes.is_some() && state.slot.is_none_or(|s| self.slots.is_shared(s));
        Need { blocks: usize::from(copies), slots: usize::from(moves) }
    }

    /// Hands out what [`StateStore::to_write`] says. Returns the block to copy before the step.
    pub(crate) fn make_writable(&mut self, state: &mut SequenceState, start: usize) -> Option<BlockCopy> {
        let need = self.to_write(state, start);
        if need.slots > 0 {
            state.next = Some(self.allocate_slot());
        }
        (need.blocks > 0).then(|| {
            let to = self.allocate_block();
            let from = std::mem::replace(&mut state.blocks[start / self.block_size], to);
            self.read_blocks.push(from);
            BlockCopy { to, from }
        })
    }

    /// Appends blocks until there are `n`.
    pub(crate) fn grow(&mut self, state: &mut SequenceState, n: usize) {
        while state.blocks.len() < n {
            let block = self.allocate_block();
            state.blocks.push(block);
        }
    }

    /// What drafts need besides blocks.
    pub(crate) fn to_draft(&self) -> Need {
        Need { blocks: 0, slots: usize::from(self.sizes.is_some()) }
    }

    /// Hands out what [`StateStore::to_draft`] says, for a step that verifies drafts.
    pub(crate) fn prepare_drafts(&mut self, state: &mut SequenceState) {
        if self.sizes.is_some() {
            state.drafted = Some(self.allocate_slot());
        }
    }

    /// Gives up what a sequence holds for others or for later. Returns whether there was anything.
    pub(crate) fn give_up_spare(&mut self, state: &mut SequenceState) -> bool {
        let n_before = state.slots().count();
        self.release_fork(state);
        while let Some(snapshot) = state.unlisted.pop() {
            self.release_slot(snapshot.slot);
        }
        state.slots().count() < n_before
    }

    /// Gives up the snapshot for other choices of the request.
    pub(crate) fn release_fork(&mut self, state: &mut SequenceState) {
        if let Some(slot) = state.fork.take() {
            self.release_slot(slot);
        }
    }

    /// Appends to the batch where the state of the sequence pushed last comes from and goes to, with the snapshots that are worth it
    /// and have room.
    pub(crate) fn push_state(&mut self, state: &mut SequenceState, span: &Span, batch: &mut Batch) {
        if self.sizes.is_none() {
            return;
        }
        self.writes.clear();
        self.take_snapshots(state, span);
        let from = state.slot;
        let to = state.next.take().or(from).expect("it was made writable");
        let fork_at =
            span.fork_at.filter(|n| (span.start..=span.certain).contains(n) && state.fork.is_none());
        if let Some(n) = fork_at {
            // At the first position, what the step reads is what is wanted, if the step leaves it as it is.
            state.fork = match from.filter(|_| n == span.start) {
                Some(from) if from != to => {
                    self.slots.retain(from);
                    Some(from)
                }
                Some(_) => None,
                None => self.spare_slot().inspect(|&slot| {
                    self.writes.push(StateWrite { n_tokens: n - span.start, slot });
                }),
            };
        }
        self.writes.push(StateWrite { n_tokens: span.certain - span.start, slot: to });
        if let Some(slot) = state.drafted {
            self.writes.push(StateWrite { n_tokens: span.end - span.start, slot });
        }
        self.writes.sort_by_key(|w| w.n_tokens);
        batch.push_state(from, &self.writes);
        if let Some(old) = from.filter(|&old| old != to) {
            self.read_slots.push(old);
        }
        state.slot = Some(to);
    }

    /// Has a step write snapshots: spaced so that they take about as many bytes as the keys and values between them, before the last
    /// token of the prompt, so that it can be read again or go on otherwise, and at the newest end of what was generated.
    fn take_snapshots(&mut self, state: &mut SequenceState, span: &Span) {
        let Some(sizes) = self.sizes.filter(|_| self.reuse) else { return };
        let border = |position: usize| position / self.block_size * self.block_size;
        let spacing = sizes.slot_bytes.div_ceil(sizes.block_bytes) * self.block_size;
        let prompt = border(span.n_prompt - 1);
        let tail = if span.completes && span.certain > span.n_prompt { border(span.end) } else { 0 };
        let mut position = border(span.start) + self.block_size;
        while position <= span.end {
            let stays = position.is_multiple_of(spacing) || position == prompt;
            let is_known = state.unlisted.iter().any(|s| s.position == position);
            if (stays || position == tail) && !is_known {
                let Some(slot) = self.spare_slot() else { break };
                self.writes.push(StateWrite { n_tokens: position - span.start, slot });
                state.unlisted.push(Snapshot { position, slot, is_tail: !stays });
            }
            position += self.block_size;
        }
        state.unlisted.sort_by_key(|s| s.position);
    }

    /// Drops what only the step that was scheduled reads.
    pub(crate) fn end_schedule(&mut self) {
        while let Some(block) = self.read_blocks.pop() {
            self.clock += 1;
            self.blocks.release(block, self.clock);
        }
        while let Some(slot) = self.read_slots.pop() {
            self.release_slot(slot);
        }
    }

    /// Rolls back to `end`, the position before a step's drafts, as far as some were wrong: the first `n_accepted` of `n` were right.
    /// Returns how many of the drafts' positions stay computed.
    pub(crate) fn roll_back(
        &mut self,
        state: &mut SequenceState,
        end: usize,
        n: usize,
        n_accepted: usize,
    ) -> usize {
        // The slot may be one for drafts of a later step.
        let Some(drafted) = state.drafted.take_if(|_| n > 0) else { return n_accepted };
        if n_accepted == n {
            if let Some(before) = state.slot.replace(drafted) {
                self.release_slot(before);
            }
            return n;
        }
        // The state after some of the drafts was not kept. These are computed again with the next ones, which costs no step.
        self.release_slot(drafted);
        while let Some(wrong) = state.unlisted.pop_if(|s| s.position > end + n_accepted) {
            self.release_slot(wrong.slot);
        }
        0
    }

    /// Offers full blocks and the snapshots behind them to the prefix cache, as far as `tokens` are known to be computed.
    pub(crate) fn offer(&mut self, state: &mut SequenceState, tokens: &[u32], salt: Option<u64>) {
        if !self.reuse {
            return;
        }
        while let Some(parent) = state.node {
            let range = state.n_offered * self.block_size..(state.n_offered + 1) * self.block_size;
            if range.end > tokens.len() {
                return;
            }
            let block = state.blocks[state.n_offered];
            let inserted = self.cache.insert(block, &tokens[range], parent, salt);
            if inserted.is_some_and(|i| i.listed) {
                self.blocks.set_cached(block);
            }
            state.node = inserted.map(|i| i.node);
            state.n_offered += 1;
            let position = state.n_offered * self.block_size;
            while let Some(&snapshot) = state.unlisted.first().filter(|s| s.position <= position) {
                state.unlisted.remove(0);
                if let Some(i) = inserted.filter(|_| snapshot.position == position) {
                    self.list_snapshot(state, snapshot, i.block, i.node);
                }
                self.release_slot(snapshot.slot);
            }
        }
        // Without a node there is no place for the rest.
        while let Some(snapshot) = state.unlisted.pop() {
            self.release_slot(snapshot.slot);
        }
    }

    /// Offers the partly filled last block of a sequence that ends, after [`StateStore::offer`].
    pub(crate) fn offer_part(&mut self, state: &SequenceState, tokens: &[u32], salt: Option<u64>) {
        let rest = tokens.get(state.n_offered * self.block_size..).unwrap_or_default();
        let (Some(parent), false) = (state.node, rest.is_empty()) else { return };
        if !self.reuse || self.sizes.is_some() || rest.len() >= self.block_size {
            return;
        }
        let block = state.blocks[state.n_offered];
        if self.cache.insert_part(block, rest, parent, salt) {
            self.blocks.set_cached(block);
        }
    }

    fn list_snapshot(&mut self, state: &mut SequenceState, snapshot: Snapshot, block: u32, node: u64) {
        if !self.cache.set_snapshot(block, snapshot.slot) {
            return;
        }
        self.slots.set_cached(snapshot.slot);
        self.counters.listed_snapshots += 1;
        // What is listed under another node by now is another sequence's.
        let is_listed = |(slot, node): &(u32, u64)| self.cache.snapshot_node(*slot) == Some(*node);
        if let Some((old, _)) = state.tail.take().filter(is_listed) {
            self.cache.remove_snapshot(old);
            self.slots.forget(old);
        }
        state.tail = snapshot.is_tail.then_some((snapshot.slot, node));
    }

    // Checks.

    /// What a lookup can find in the prefix cache; see [`PrefixCache::texts`].
    pub(crate) fn cached_texts(&self) -> Vec<(Option<u64>, Vec<u32>, bool)> {
        self.cache.texts()
    }

    /// What the cache believes to be in a block; `None` if it does not list it.
    pub(crate) fn contents(&self, block: u32) -> Option<&[u32]> {
        self.cache.contents(block)
    }

    /// Says what is wrong if the books do not balance, `states` being all that sequences hold. Not to be called while a step is being
    /// scheduled.
    pub(crate) fn check<'a>(&self, states: impl Iterator<Item = &'a SequenceState>) -> Result<(), String> {
        let (mut blocks, mut slots) = (vec![0; self.blocks.len()], vec![0; self.slots.len()]);
        for state in states {
            state.blocks.iter().for_each(|&b| blocks[b as usize] += 1);
            state.slots().for_each(|s| slots[s as usize] += 1);
        }
        for (what, (in_use, idle, free), all) in
            [("blocks", self.n_blocks(), self.blocks.len()), ("slots", self.n_slots(), self.slots.len())]
        {
            if in_use + idle + free != all {
                return Err(format!("{in_use} + {idle} + {free} {what} are not all of {all}"));
            }
        }
        let held = (self.blocks.len() - self.blocks.n_free(), self.slots.len() - self.slots.n_free());
        if self.bytes(held.0, held.1) > self.budget() {
            return Err(format!("{} blocks and {} slots exceed the budget", held.0, held.1));
        }
        self.blocks.check(&blocks, |b| self.cache.node(b).is_some()).map_err(|e| format!("blocks: {e}"))?;
        self.slots.check(&slots, |s| self.cache.snapshot_node(s).is_some()).map_err(|e| format!("slots: {e}"))
    }
}
