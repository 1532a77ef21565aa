//! Grammars over bytes as a machine with a stack, for all readings of the text at once.
//!
//! A state is the set of stacks that the text so far can have led to, each with a range of bytes on top. Stacks share their lower
//! parts and states are made once, so that a text that goes round in a rule goes round in few states, whose steps and masks are
//! remembered.

use llguidance::toktrie::{Recognizer, TokEnv};
use realizar_engine::{Constraint, TokenMask};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stacks of one state at most.
const MAX_STACKS: usize = 2_000;
/// States at most; each remembers a step for each byte, 1 kB.
pub(super) const MAX_STATES: usize = 30_000;
/// Places on stacks at most.
const MAX_PLACES: usize = 1_000_000;
/// Stacks of all states together at most.
const MAX_TOPS: usize = 2_000_000;
/// Places that one mask, or one token, may visit: some tenths of a second.
const MAX_VISITS: usize = 2_000_000;
/// Masks that are remembered; each has a bit per token.
const MAX_MASKS: usize = 256;

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) first: u8,
    pub(super) last: u8,
}

/// What stands in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// One byte of a range.
    Bytes(Bytes),
    /// What a rule says.
    Rule(u32),
}

/// Rules, each with its alternatives.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    rules: Vec<Vec<Vec<Element>>>,
    root: u32,
}

impl Rules {
    /// A rule without alternatives as yet.
    pub(super) fn add(&mut self) -> u32 {
        self.add_defined(Vec::new())
    }

    pub(super) fn add_defined(&mut self, alternatives: Vec<Vec<Element>>) -> u32 {
        self.rules.push(alternatives);
        self.rules.len() as u32 - 1
    }

    pub(super) fn define(&mut self, rule: u32, alternatives: Vec<Vec<Element>>) {
        self.rules[rule as usize] = alternatives;
    }

    pub(super) fn alternatives(&self, rule: u32) -> &[Vec<Element>] {
        &self.rules[rule as usize]
    }

    pub(super) fn set_root(&mut self, rule: u32) {
        self.root = rule;
    }

    /// A rule that can come to itself again without a byte, with something left to do after it: its stacks would grow for ever.
    pub(super) fn left_recursive(&self) -> Option<u32> {
        let nullable = self.nullable();
        // For each rule the rules that may begin it, and whether something follows them.
        let begins: Vec<Vec<(u32, bool)>> = self.rules.iter().map(|rule| begins(rule, &nullable)).collect();
        let component = components(&begins);
        let same = |a: usize, b: u32| component[a] == component[b as usize];
        let grows = |rule: &usize| begins[*rule].iter().any(|&(first, grows)| grows && same(*rule, first));
        (0..self.rules.len()).find(grows).map(|rule| rule as u32)
    }

    /// Which rules have an empty text.
    fn nullable(&self) -> Vec<bool> {
        let mut nullable = vec![false; self.rules.len()];
        // Where each rule is used, and how many elements of each alternative may not be empty yet.
        let mut uses: Vec<Vec<(u32, u32)>> = vec![Vec::new(); self.rules.len()];
        let mut left: Vec<Vec<usize>> = Vec::with_capacity(self.rules.len());
        let mut open = Vec::new();
        for (rule, alternatives) in self.rules.iter().enumerate() {
            for (alternative, elements) in alternatives.iter().enumerate() {
                if elements.is_empty() {
                    open.push(rule as u32);
                }
                for element in elements {
                    if let Element::Rule(used) = element {
                        uses[*used as usize].push((rule as u32, alternative as u32));
                    }
                }
            }
            left.push(alternatives.iter().map(Vec::len).collect());
        }
        while let Some(rule) = open.pop() {
            if std::mem::replace(&mut nullable[rule as usize], true) {
                continue;
            }
            for &(user, alternative) in &uses[rule as usize] {
                let left = &mut left[user as usize][alternative as usize];
                *left -= 1;
                if *left == 0 {
                    open.push(user);
                }
            }
        }
        nullable
    }
}

/// The rules that may begin a rule, and whether something follows them.
fn begins(alternatives: &[Vec<Element>], nullable: &[bool]) -> Vec<(u32, bool)> {
    let is_empty = |e: &Element| matches!(e, Element::Rule(r) if nullable[*r as usize]);
    let of = |elements: &Vec<Element>| {
        let n = elements.iter().take_while(|e| is_empty(e)).count();
        let first = elements.iter().enumerate().take(n + 1);
        let rules = first.filter_map(|(i, e)| match e {
            Element::Rule(r) => Some((*r, i + 1 < elements.len())),
            Element::Bytes(_) => None,
        });
        rules.collect::<Vec<_>>()
    };
    alternatives.iter().flat_map(of).collect()
}

/// The strongly connected component of each node of a graph (Kosaraju's algorithm, without recursion).
fn components(edges: &[Vec<(u32, bool)>]) -> Vec<u32> {
    let n = edges.len();
    let mut order = Vec::with_capacity(n);
    let mut seen = vec![false; n];
    for start in 0..n {
        if std::mem::replace(&mut seen[start], true) {
            continue;
        }
        let mut path = vec![(start, 0)];
        while let Some((node, at)) = path.last_mut() {
            let Some(&(next, _)) = edges[*node].get(*at) else {
                order.push(*node);
                path.pop();
                continue;
            };
            *at += 1;
            if !std::mem::replace(&mut seen[next as usize], true) {
                path.push((next as usize, 0));
            }
        }
    }
    let mut backward: Vec<Vec<usize>> = vec![Vec::new(); n];
    for (from, to) in
        edges.iter().enumerate().flat_map(|(from, to)| to.iter().map(move |(to, _)| (from, *to)))
    {
        backward[to as usize].push(from);
    }
    let mut component = vec![u32::MAX; n];
    for (number, &root) in order.iter().rev().enumerate() {
        let mut open = vec![root];
        while let Some(node) = open.pop() {
            if component[node] == u32::MAX {
                component[node] = number as u32;
                open.extend(backward[node].iter().filter(|&&from| component[from] == u32::MAX));
            }
        }
    }
    component
}

/// A place in a rule, with the place to go on at when the rule is at its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    rule: u32,
    alternative: u32,
    at: u32,
    /// A place's number, or [`BOTTOM`].
    below: u32,
}

const BOTTOM: u32 = u32::MAX;
/// The state in which nothing can follow and the text is not whole.
const DEAD: u32 = 0;
const UNKNOWN: u32 = u32::MAX;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Stacks {
    /// Numbers of places before a range of bytes, ascending.
    tops: Box<[u32]>,
    /// Whether the text may end here.
    complete: bool,
}

#[derive(Clone)]
struct State {
    stacks: Stacks,
    /// The state after each byte.
    next: Option<Box<[u32; 256]>>,
    mask: Option<Arc<TokenMask>>,
}

/// A grammar with the states that its texts have come to so far.
#[derive(Clone)]
struct Machine {
    rules: Rules,
    environment: TokEnv,
    places: Vec<Place>,
    place_numbers: HashMap<Place, u32>,
    states: Vec<State>,
    state_numbers: HashMap<Stacks, u32>,
    n_masks: usize,
    /// Stacks of all states.
    n_tops: usize,
    /// Places that may still be visited for this mask or token.
    visits_left: usize,
    /// Why the machine cannot go on.
    broken: Option<String>,
}

impl Machine {
    /// The machine and its first state.
    fn new(rules: Rules, environment: TokEnv) -> Result<(Self, u32), String> {
        let mut machine = Self {
            rules,
            environment,
            places: Vec::new(),
            place_numbers: HashMap::new(),
            states: Vec::new(),
            state_numbers: HashMap::new(),
            n_masks: 0,
            n_tops: 0,
            visits_left: MAX_VISITS,
            broken: None,
        };
        machine.state(Stacks { tops: Box::default(), complete: false })?;
        let root = machine.rules.root;
        let open = (0..machine.rules.alternatives(root).len() as u32).map(|alternative| Place {
            rule: root,
            alternative,
            at: 0,
            below: BOTTOM,
        });
        let open = open.collect();
        let start = machine.reach(open)?;
        Ok((machine, start))
    }

    fn element(&self, place: Place) -> Option<Element> {
        self.rules.alternatives(place.rule)[place.alternative as usize].get(place.at as usize).copied()
    }

    fn place(&mut self, place: Place) -> Result<u32, String> {
        let n = self.places.len();
        if let Some(&number) = self.place_numbers.get(&place) {
            return Ok(number);
        }
        if n >= MAX_PLACES {
            return Err(too_complex("places on its stacks", MAX_PLACES));
        }
        self.places.push(place);
        self.place_numbers.insert(place, n as u32);
        Ok(n as u32)
    }

    fn state(&mut self, stacks: Stacks) -> Result<u32, String> {
        if let Some(&number) = self.state_numbers.get(&stacks) {
            return Ok(number);
        }
        if self.states.len() >= MAX_STATES {
            return Err(too_complex("states", MAX_STATES));
        }
        self.n_tops += stacks.tops.len();
        if self.n_tops > MAX_TOPS {
            return Err(too_complex("stacks in its states", MAX_TOPS));
        }
        let number = self.states.len() as u32;
        self.states.push(State { stacks: stacks.clone(), next: None, mask: None });
        self.state_numbers.insert(stacks, number);
        Ok(number)
    }

    /// Counts places that are looked at.
    fn visit(&mut self, n: usize) -> Result<(), String> {
        self.visits_left = self.visits_left.saturating_sub(n);
        match self.visits_left {
            0 => Err(too_complex("places visited for one token", MAX_VISITS)),
            _ => Ok(()),
        }
    }

    /// The state of all stacks that these places come to without a byte.
    fn reach(&mut self, mut open: Vec<Place>) -> Result<u32, String> {
        let (mut tops, mut complete, mut seen) = (Vec::new(), false, HashSet::new());
        while let Some(place) = open.pop() {
            self.visit(1)?;
            if !seen.insert(place) {
                continue;
            }
            if seen.len() > MAX_STACKS {
                return Err(too_complex("readings of one text", MAX_STACKS));
            }
            match self.element(place) {
                Some(Element::Bytes(_)) => tops.push(self.place(place)?),
                Some(Element::Rule(rule)) => {
                    let after = Place { at: place.at + 1, ..place };
                    // Where nothing follows, the rule goes on where this one does: repetitions do not deepen the stack.
                    let below = if self.element(after).is_none() { place.below } else { self.place(after)? };
                    let alternatives = 0..self.rules.alternatives(rule).len() as u32;
                    open.extend(alternatives.map(|alternative| Place { rule, alternative, at: 0, below }));
                }
                None if place.below == BOTTOM => complete = true,
                None => open.push(self.places[place.below as usize]),
            }
        }
        tops.sort_unstable();
        tops.dedup();
        self.state(Stacks { tops: tops.into(), complete })
    }

    /// The state after a byte.
    fn step(&mut self, state: u32, byte: u8) -> u32 {
        let known = self.states[state as usize].next.as_ref().map_or(UNKNOWN, |next| next[usize::from(byte)]);
        if known != UNKNOWN {
            return known;
        }
        if self.broken.is_some() {
            return DEAD;
        }
        let next = self.step_anew(state, byte).unwrap_or_else(|reason| {
            self.broken = Some(reason);
            DEAD
        });
        let table = self.states[state as usize].next.get_or_insert_with(|| Box::new([UNKNOWN; 256]));
        table[usize::from(byte)] = next;
        next
    }

    fn step_anew(&mut self, state: u32, byte: u8) -> Result<u32, String> {
        let tops = self.states[state as usize].stacks.tops.clone();
        self.visit(tops.len())?;
        let mut open = Vec::new();
        for &top in &tops {
            let place = self.places[top as usize];
            if let Some(Element::Bytes(bytes)) = self.element(place)
                && (bytes.first..=bytes.last).contains(&byte)
            {
                open.push(Place { at: place.at + 1, ..place });
            }
        }
        if open.is_empty() { Ok(DEAD) } else { self.reach(open) }
    }

    /// The tokens that may follow in a state, stop tokens among them.
    fn mask(&mut self, state: u32) -> Result<Arc<TokenMask>, String> {
        if let Some(mask) = &self.states[state as usize].mask {
            return Ok(mask.clone());
        }
        self.visits_left = MAX_VISITS;
        let environment = self.environment.clone();
        let trie = environment.tok_trie();
        let mut set = trie.alloc_token_set();
        if !self.states[state as usize].stacks.tops.is_empty() {
            trie.add_bias(&mut Walk { machine: self, states: vec![state] }, &mut set, &[]);
        }
        if let Some(reason) = &self.broken {
            return Err(reason.clone());
        }
        if self.states[state as usize].stacks.complete {
            trie.eos_tokens().iter().for_each(|&id| set.allow_token(id));
        }
        let mut mask = TokenMask::none(trie.vocab_size());
        let words = mask.words_mut();
        words.copy_from_slice(&set.as_slice()[..words.len()]);
        let mask = Arc::new(mask);
        if self.n_masks < MAX_MASKS {
            self.n_masks += 1;
            self.states[state as usize].mask = Some(mask.clone());
        }
        Ok(mask)
    }
}

/// A way along the trie of the vocabulary.
struct Walk<'a> {
    machine: &'a mut Machine,
    states: Vec<u32>,
}

impl Recognizer for Walk<'_> {
    fn pop_bytes(&mut self, num: usize) {
        self.states.truncate(self.states.len() - num);
    }

    fn collapse(&mut self) {
        let last = self.states.pop();
        self.states.clear();
        self.states.extend(last);
    }

    fn trie_finished(&mut self) {
        self.states.truncate(1);
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        let state = self.states.last().copied().unwrap_or(DEAD);
        let next = self.machine.step(state, byte);
        if next != DEAD {
            self.states.push(next);
        }
        next != DEAD
    }
}

/// One text's place in its grammar. Forks share the machine.
pub(crate) struct PushdownConstraint {
    machine: Arc<Mutex<Machine>>,
    state: u32,
    mask: Option<Arc<TokenMask>>,
}

impl PushdownConstraint {
    /// At the beginning of a text.
    pub(super) fn new(rules: Rules, environment: TokEnv) -> Result<Self, String> {
        let (machine, state) = Machine::new(rules, environment)?;
        Ok(Self { machine: Arc::new(Mutex::new(machine)), state, mask: None })
    }

    /// The same place with a machine of its own, which remembers what this one does.
    pub(super) fn separate(&self) -> Self {
        let machine = Arc::new(Mutex::new(self.machine().clone()));
        Self { machine, state: self.state, mask: self.mask.clone() }
    }

    /// Bytes that it takes, about.
    pub(super) fn n_bytes(&self) -> usize {
        let machine = self.machine();
        let mask_bytes = machine.environment.tok_trie().vocab_size() / 8;
        machine.states.len() * 1200
            + machine.n_tops * 8
            + machine.places.len() * 48
            + machine.n_masks * mask_bytes
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        // What the machine remembers is right at any time.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Constraint for PushdownConstraint {
    fn allowed(&mut self) -> Result<&TokenMask, String> {
        if self.mask.is_none() {
            let mask = self.machine().mask(self.state)?;
            if mask.words().iter().all(|&word| word == 0) {
                return Err("no text of this model's tokens satisfies it".to_owned());
            }
            self.mask = Some(mask);
        }
        self.mask.as_deref().ok_or_else(|| "it has no mask".to_owned())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let state = {
            let mut machine = self.machine();
            machine.visits_left = MAX_VISITS;
            let environment = machine.environment.clone();
            let bytes = environment.tok_trie().token(token);
            let end = bytes.iter().fold(self.state, |state, &byte| machine.step(state, byte));
            if bytes.is_empty() { DEAD } else { end }
        };
        if state == DEAD {
            if let Some(reason) = &self.machine().broken {
                return Err(reason.clone());
            }
            return Err(format!("the token {token} is not allowed here"));
        }
        (self.state, self.mask) = (state, None);
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self { machine: self.machine.clone(), state: self.state, mask: self.mask.clone() })
    }
}

/// Why a grammar is refused, in one line.
fn too_complex(what: &str, limit: usize) -> String {
    format!("it is too complex: more than {limit} {what}")
}
