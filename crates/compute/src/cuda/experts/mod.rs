//! Launches of a mixture of experts: nothing of the routing comes back to the host.

use super::common::{Input, MAX_EXPERTS, Output, RouteArgs, activation_code};
use super::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image};
use super::elementwise;
use super::matmul::{
    Epilogue, EpilogueKind, ExpertsPlan, ExpertsProblem, ExpertsRows, GroupedRows, MAX_USED, Part, Rows,
    TILE_ROWS, Target, gemv_part, select_experts,
};
use crate::{
    Error, Experts, ExpertsKind, GroupScore, MoeScratch, Norm, NormKind, Result, Router, RouterScores, Tensor,
};

/// Most groups of experts, one for each lane of a warp.
const MAX_GROUPS: usize = 32;
/// Tokens of a block of `moe_route`, and threads.
const ROUTE_TOKENS: usize = 4;
const ROUTE_THREADS: u32 = 128;
/// Tokens below which a block of `moe_combine` has fewer threads.
const FEW_TOKENS: usize = 256;

kernel_args! {
    in "experts_args.cuh";
    include "../common/route_args.cuh";

    /// Warps of moe_group.
    const GROUP_WARPS: usize = 16;

    struct MoeArgs {
        /// [n_tokens, hidden_size]
        y: DevicePtr as "float*",
        /// Whether sums are added to y.
        adds: u32,
        route: RouteArgs,
        /// [n_experts, hidden_size], or null
        down_bias: DevicePtr as "const float*",
        /// [n_uses, hidden_size], by slot
        outputs: DevicePtr as "const float*",
        /// [n_uses]: use i of token t at t * n_used + i, most probable first
        experts: DevicePtr as "uint32_t*",
        /// [n_uses]
        weights: DevicePtr as "float*",
        /// [n_uses]: the slot of each use; slots are sorted by expert, then by use
        slots: DevicePtr as "uint32_t*",
        /// [n_uses]: the token of each slot
        tokens: DevicePtr as "uint32_t*",
        /// [n_uses]: where each use is if all tiles have `tile_rows` rows
        places: DevicePtr as "uint32_t*",
        /// [n_tiles]; those not needed have no rows
        tiles: DevicePtr as "struct MoeTile*",
        /// how many tiles have rows
        n_filled: DevicePtr as "uint32_t*",
        n_tokens: u32,
        hidden_size: u32,
        n_tiles: u32,
        /// Slots of a tile at most.
        tile_rows: u32,
    }

    struct MoeGateArgs {
        /// [n_uses, intermediate_size], by slot
        hidden: DevicePtr as "float*",
        /// [n_uses, 2 * intermediate_size], by slot
        gate_up: DevicePtr as "const float*",
        /// [n_experts, 2 * intermediate_size], or null
        bias: DevicePtr as "const float*",
        /// [n_uses]
        experts: DevicePtr as "const uint32_t*",
        /// [n_uses]
        slots: DevicePtr as "const uint32_t*",
        intermediate_size: u32,
        activation: u32,
    }
}

/// Kernels of experts.cu.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Kernels {
    moe_route: Kernel<MoeArgs>,
    moe_group: Kernel<MoeArgs>,
    moe_gate: Kernel<MoeGateArgs>,
    moe_combine: Kernel<MoeArgs>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(experts);
        Ok(Self {
            moe_route: image.kernel(driver, "moe_route", 0)?,
            moe_group: image.kernel(driver, "moe_group", group_shared_bytes(MAX_EXPERTS))?,
            moe_gate: image.kernel(driver, "moe_gate", 0)?,
            moe_combine: image.kernel(driver, "moe_combine", 0)?,
        })
    }
}

/// Dynamic shared memory of `moe_group`.
fn group_shared_bytes(n_experts: usize) -> usize {
    4 * (GROUP_WARPS + 2) * n_experts
}

/// Whether the kernels have room for this.
pub(in crate::cuda) fn check(kind: &ExpertsKind) -> Result<()> {
    check_sizes(kind.n_experts, &kind.params.router)?;
    match kind.bias && !kind.params.gated {
        true => Err(Error::UnsupportedSize {
            op: "moe",
            what: "biases of experts without gates".into(),
            backend: "cuda",
        }),
        false => Ok(()),
    }
}

fn check_sizes(n_experts: usize, router: &Router) -> Result<()> {
    let (n_used, n_groups) = (router.n_used, router.groups.map_or(1, |groups| groups.count));
    let what = match () {
        () if n_used > MAX_USED => format!("{n_used} experts per token; up to {MAX_USED} can be"),
        () if n_experts > MAX_EXPERTS => format!("{n_experts} experts; up to {MAX_EXPERTS} can be"),
        () if n_groups > MAX_GROUPS => format!("{n_groups} groups of experts; up to {MAX_GROUPS} can be"),
        () => return Ok(()),
    };
    Err(Error::UnsupportedSize { op: "moe", what, backend: "cuda" })
}

/// `y = sum over chosen experts` of the rows of `x`.
pub(in crate::cuda) fn moe(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    router: &Tensor<Cuda>,
    experts: &Experts<'_, Cuda>,
    scratch: &mut MoeScratch<Cuda>,
) -> Result<()> {
    assert_eq!((x.row_len(), y.row_len()), (experts.down.shape.n_out, experts.down.shape.n_out));
    assert_eq!((x.rows(), y.rows()), (router.rows(), router.rows()));
    run(cuda, (y.ptr(), Epilogue::Store), Input::Floats(x.ptr(), None), router, experts, scratch)
}

/// Whether [`run`] takes a norm before such experts with `m` rows.
pub(in crate::cuda) fn has_norm(
    cuda: &Cuda,
    experts: &Experts<'_, Cuda>,
    m: usize,
    norm: &Norm<Cuda>,
) -> bool {
    let is_simple = norm.kind == NormKind::Rms && norm.bias.is_none();
    is_simple && !matches!(plan(cuda, experts, m), ExpertsPlan::SimtGemv)
}

/// As [`moe`], with the sums stored in `y` or added to what is there. `x` and `y` are `[n_tokens, hidden_size]`, and may be the same.
///
/// # Panics
/// If there is a norm that the kernels do not have; see [`has_norm`].
pub(in crate::cuda) fn run(
    cuda: &Cuda,
    to: (DevicePtr, Epilogue),
    x: Input<'_>,
    router: &Tensor<Cuda>,
    experts: &Experts<'_, Cuda>,
    scratch: &mut MoeScratch<Cuda>,
) -> Result<()> {
    let mixture = Mixture::new(router, experts, scratch)?;
    let plan = mixture.plan(cuda);
    if let ExpertsPlan::Gemv(plan) = plan {
        return plan.run(cuda, &mixture.rows(x, to));
    }
    let Input::Floats(x, norm) = x else { panic!("experts read floats") };
    let routes = match plan {
        ExpertsPlan::GroupedSmallM(plan) => {
            let (routes, rows) = mixture.grouped(cuda, (x, norm), plan.tile_rows())?;
            plan.run(cuda, &rows)?;
            routes
        }
        ExpertsPlan::GroupedGemm(plan) => {
            let (routes, rows) = mixture.grouped(cuda, (x, norm), plan.tile_rows())?;
            plan.run(cuda, &rows)?;
            routes
        }
        ExpertsPlan::GroupedMma(plan) => {
            let (routes, rows) = mixture.grouped(cuda, (x, norm), plan.tile_rows())?;
            plan.run(cuda, &rows)?;
            routes
        }
        ExpertsPlan::Gemv(_) | ExpertsPlan::SimtGemv => {
            assert!(norm.is_none(), "experts with a norm that their kernels do not have");
            mixture.multiply_in_floats(cuda, x)?
        }
    };
    mixture.combine(cuda, &routes, to)
}

fn plan(cuda: &Cuda, experts: &Experts<'_, Cuda>, m: usize) -> ExpertsPlan {
    let Experts { gate_up, down, params, .. } = experts;
    let (gate_up, down, n_used) = (&gate_up.shape, &down.shape, params.router.n_used);
    select_experts(&Target::of(cuda), &ExpertsProblem { gate_up, down, m, n_used, gated: params.gated }).1
}

/// One mixture of experts with its sizes.
struct Mixture<'a> {
    experts: &'a Experts<'a, Cuda>,
    /// `[n_tokens, n_experts]`
    router: &'a Tensor<Cuda>,
    scratch: &'a MoeScratch<Cuda>,
    n_tokens: usize,
    hidden_size: usize,
    intermediate_size: usize,
    n_experts: usize,
}

/// Which experts are used, on the device.
struct Routes {
    args: MoeArgs,
    n_tiles: usize,
}

impl<'a> Mixture<'a> {
    /// Checks all sizes.
    fn new(
        router: &'a Tensor<Cuda>,
        experts: &'a Experts<'a, Cuda>,
        scratch: &'a mut MoeScratch<Cuda>,
    ) -> Result<Self> {
        let (up, back) = (&experts.gate_up.shape, &experts.down.shape);
        let (n_tokens, n_experts) = (router.rows(), router.row_len());
        let (hidden_size, intermediate_size) = (back.n_out, back.n_in);
        assert_eq!((up.n_in, up.n_out), (hidden_size, experts.params.up_rows() * intermediate_size));
        assert_eq!((up.n_experts, back.n_experts), (n_experts, n_experts));
        let biases = [(experts.gate_up_bias, up.n_out), (experts.down_bias, back.n_out)];
        assert!(biases.iter().all(|(bias, n)| bias.is_none_or(|b| b.len() == n_experts * n)), "biases");
        let of_experts = [experts.selection_bias, experts.output_scale];
        assert!(
            of_experts.iter().all(|t| t.is_none_or(|t| t.len() == n_experts)),
            "a number for each expert"
        );
        check_sizes(n_experts, &experts.params.router)?;
        let n_used = experts.params.router.n_used;
        assert!(n_used <= n_experts, "{n_used} of {n_experts} experts");
        for t in [&mut scratch.x, &mut scratch.gate_up, &mut scratch.hidden, &mut scratch.y] {
            t.set_rows(n_tokens * n_used);
        }
        Ok(Self { experts, router, scratch, n_tokens, hidden_size, intermediate_size, n_experts })
    }

    fn n_uses(&self) -> usize {
        self.n_tokens * self.experts.params.router.n_used
    }

    fn plan(&self, cuda: &Cuda) -> ExpertsPlan {
        plan(cuda, self.experts, self.n_tokens)
    }

    fn biases(&self) -> [DevicePtr; 2] {
        [self.experts.gate_up_bias, self.experts.down_bias].map(|b| b.map_or(DevicePtr::NULL, Tensor::ptr))
    }

    fn route_args(&self) -> RouteArgs {
        let Router { n_used, scores, norm_topk, scale, groups } = self.experts.params.router;
        RouteArgs {
            router: self.router.ptr(),
            selection_bias: self.experts.selection_bias.map_or(DevicePtr::NULL, Tensor::ptr),
            output_scale: self.experts.output_scale.map_or(DevicePtr::NULL, Tensor::ptr),
            n_experts: self.n_experts as u32,
            n_used: n_used as u32,
            norm_topk: u32::from(norm_topk),
            is_sigmoid: u32::from(scores == RouterScores::Sigmoid),
            scale,
            n_groups: groups.map_or(1, |groups| groups.count as u32),
            n_groups_used: groups.map_or(1, |groups| groups.n_used as u32),
            groups_by_top_two: u32::from(groups.is_some_and(|groups| groups.score == GroupScore::TopTwo)),
        }
    }

    /// Chooses the experts of each token. There is room to group them in tiles of `tile_rows`.
    fn route(&self, cuda: &Cuda, tile_rows: usize) -> Result<Routes> {
        let (n_uses, n_experts) = (self.n_uses(), self.n_experts);
        // Each expert's last tile may be partly filled.
        let n_tiles = n_uses.min(n_uses / tile_rows + n_experts);
        let words =
            cuda.scratch.get(&cuda.driver, "routes to experts", 4 * (5 * n_uses + 3 * n_tiles + 1))?;
        let array = |i: usize| words.offset(4 * i * n_uses);
        let args = MoeArgs {
            y: DevicePtr::NULL,
            adds: 0,
            route: self.route_args(),
            down_bias: self.biases()[1],
            outputs: self.scratch.y.ptr(),
            experts: array(0),
            weights: array(1),
            slots: array(2),
            tokens: array(3),
            places: array(4),
            tiles: array(5),
            n_filled: array(5).offset(4 * 3 * n_tiles),
            n_tokens: self.n_tokens as u32,
            hidden_size: self.hidden_size as u32,
            n_tiles: n_tiles as u32,
            tile_rows: tile_rows as u32,
        };
        let (f, blocks) = (cuda.room::<Kernels>().moe_route, self.n_tokens.div_ceil(ROUTE_TOKENS));
        // SAFETY: the scratch memory holds five words for each use; the tensors were checked when this was made.
        unsafe { cuda.launch(f, [blocks, 1, 1], ROUTE_THREADS, &args)? };
        Ok(Routes { args, n_tiles })
    }

    /// Sorts the uses by expert.
    fn group(&self, cuda: &Cuda, routes: &Routes) -> Result<()> {
        let (f, shared) = (cuda.room::<Kernels>().moe_group, group_shared_bytes(self.n_experts));
        let blocks = [usize::from(self.n_uses() > 0), 1, 1];
        // SAFETY: as in `route`, and the scratch memory holds three words for each tile and one more.
        unsafe { cuda.launch_shared(f, blocks, 32 * GROUP_WARPS as u32, shared, &routes.args) }
    }

    /// Stores the sum over each token's experts of what is in `scratch.y`, or adds it.
    fn combine(&self, cuda: &Cuda, routes: &Routes, (y, epilogue): (DevicePtr, Epilogue)) -> Result<()> {
        let adds = u32::from(epilogue.kind() == EpilogueKind::Add);
        let args = MoeArgs { y, adds, ..routes.args };
        let n = self.hidden_size;
        let width = if n.is_multiple_of(4) { 4 } else { 1 };
        // Few tokens are spread over more blocks.
        let threads = if self.n_tokens < FEW_TOKENS { 64 } else { 256 };
        let blocks = [self.n_tokens, n.div_ceil(width * threads), 1];
        // SAFETY: the outputs of all uses were written, and the callers checked y.
        unsafe { cuda.launch(cuda.room::<Kernels>().moe_combine, blocks, threads as u32, &args) }
    }

    /// What is computed where each row has blocks of its own.
    fn rows<'b>(&'b self, x: Input<'b>, (y, epilogue): (DevicePtr, Epilogue)) -> ExpertsRows<'b> {
        ExpertsRows {
            weights: [self.experts.gate_up, self.experts.down],
            biases: self.biases(),
            x,
            y: Output::Floats(y),
            epilogue,
            activation: self.experts.params.activation,
            route: self.route_args(),
            hidden: self.scratch.hidden.ptr(),
        }
    }

    /// The rows of `x`, sorted by the experts that they use, in tiles of `tile_rows`.
    fn grouped<'b>(
        &'b self,
        cuda: &Cuda,
        (x, norm): (DevicePtr, Option<&'b Norm<Cuda>>),
        tile_rows: usize,
    ) -> Result<(Routes, GroupedRows<'b>)> {
        let routes = self.route(cuda, tile_rows)?;
        self.group(cuda, &routes)?;
        let rows = GroupedRows {
            weights: [self.experts.gate_up, self.experts.down],
            gate_up_bias: self.biases()[0],
            activation: self.experts.params.activation,
            x,
            norm,
            m: self.n_tokens,
            n_used: self.experts.params.router.n_used,
            tiles: routes.args.tiles,
            n_tiles: routes.n_tiles,
            n_filled: routes.args.n_filled,
            tile_rows,
            slots: routes.args.slots,
            places: routes.args.places,
            x_room: &self.scratch.x,
            hidden_room: &self.scratch.gate_up,
            hidden: self.scratch.hidden.ptr(),
            y: self.scratch.y.ptr(),
        };
        Ok((routes, rows))
    }

    /// With weights of any type, decoded to floats; each row's sums are taken in an order of their own.
    fn multiply_in_floats(&self, cuda: &Cuda, x: DevicePtr) -> Result<Routes> {
        let routes = self.route(cuda, TILE_ROWS)?;
        self.group(cuda, &routes)?;
        let (args, n_tiles, scratch) = (&routes.args, routes.n_tiles, self.scratch);
        let (gate_up, down) = (self.experts.gate_up, self.experts.down);
        let rows = |x_rows| Rows::Tiles { tiles: args.tiles, n_tiles, x_rows };
        let hidden = scratch.hidden.ptr();
        let gated = self.experts.params.gated;
        let first = if gated { scratch.gate_up.ptr() } else { hidden };
        for part in &gate_up.parts {
            let y = first.offset(4 * part.shape.first_out);
            let part = Part { w: &gate_up.shape, part, y, bias: DevicePtr::NULL };
            gemv_part(cuda, part, x, rows(args.tokens))?;
        }
        if gated {
            self.gate(cuda, args)?;
        } else {
            assert!(self.experts.gate_up_bias.is_none(), "biases of experts without gates");
            let n = self.n_uses() * self.intermediate_size;
            elementwise::activate(cuda, hidden, n, self.experts.params.activation)?;
        }
        for part in &down.parts {
            let y = scratch.y.ptr().offset(4 * part.shape.first_out);
            let part = Part { w: &down.shape, part, y, bias: DevicePtr::NULL };
            gemv_part(cuda, part, hidden, rows(DevicePtr::NULL))?;
        }
        Ok(routes)
    }

    /// `scratch.hidden` of the gates and ups in `scratch.gate_up`.
    fn gate(&self, cuda: &Cuda, args: &MoeArgs) -> Result<()> {
        let gate = MoeGateArgs {
            hidden: self.scratch.hidden.ptr(),
            gate_up: self.scratch.gate_up.ptr(),
            bias: self.biases()[0],
            experts: args.experts,
            slots: args.slots,
            intermediate_size: self.intermediate_size as u32,
            activation: activation_code(self.experts.params.activation),
        };
        let blocks = [self.n_uses(), self.intermediate_size.div_ceil(256), 1];
        // SAFETY: gates and ups of all uses were written, and there is room for their products.
        unsafe { cuda.launch(cuda.room::<Kernels>().moe_gate, blocks, 256, &gate) }
    }
}
