"""Small programs as text, which the tests of ir/ and passes/ share."""

WINDOW = '!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>'
MAIN = '!dsv41.cache<"main", owner 0, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>'
INDEX = '!dsv41.cache<"index", owner 0, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>'
TAIL = '!dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>'
SYMBOLS = "dsv41.symbols = {T = [1, 512], B = [1, 4], P = [1, 8], N = [1, 64], S = [1, 4]}"
ROWS = "!dsv41.tensor<[T, 66], ui8>"
SLOTS = "!dsv41.tensor<[T], si64>"


def function(arguments: str, body: str, results: str = "", name: str = "step") -> str:
    """A module with one function; `body` ends in func.return."""
    return f"""\
func.func @{name}({arguments}) -> ({results}) attributes {{{SYMBOLS}}} {{
{body}
}}
"""


def state_function(body: str, results: str = WINDOW) -> str:
    """A function over a window cache, rows and slots."""
    return function(f"%window: {WINDOW}, %rows: {ROWS}, %slots: {SLOTS}", body, results)


STORE = (
    '%stored = dsv41.store %window, %rows, %slots {row_format = "fp8_e8m0", page = 8} : '
    f"{WINDOW}, {ROWS}, {SLOTS} -> {WINDOW}"
)


def load(cache: str, name: str = "loaded") -> str:
    """A load of the window cache value `cache`."""
    attributes = '{row_format = "fp8_e8m0", page = 8, row_width = 66}'
    return f"%{name} = dsv41.load %{cache}, %slots {attributes} : {WINDOW}, {SLOTS} -> {ROWS}"


# One of each op; what the round trip, the shape rules and the cost rules are tried on.
EVERYTHING = f"""\
func.func @square(%x: !dsv41.tensor<[T, 64], bf16>) -> (!dsv41.tensor<[T, 64], bf16>) attributes {{{SYMBOLS}}} {{
  %y = torch.aten.mul.Tensor %x, %x {{origin = "norm.py:3"}} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  func.return %y : !dsv41.tensor<[T, 64], bf16>
}}
func.func @step(%x: !dsv41.tensor<[T, 64], bf16>, %query: !dsv41.tensor<[T, 2, 64], bf16>, %sink: !dsv41.tensor<[2], f32>, %slots: {SLOTS}, %window_index: !dsv41.tensor<[T, 8], si32>, %main_slots: !dsv41.tensor<[T, 4], si32>, %pages: !dsv41.tensor<[B, P], si64>, %index_query: !dsv41.tensor<[T, 2, 32], bf16>, %index_weights: !dsv41.tensor<[T, 2], bf16>, %candidates: !dsv41.tensor<[T, 3], si32>, %logits: !dsv41.tensor<[T, 4, 4], f32>, %ids: !dsv41.tensor<[T, 3], si64>, %window.0: {WINDOW}, %main.0: {MAIN}, %index.0: {INDEX}, %tail.0: {TAIL}, %tail_rows: !dsv41.tensor<[T, 6], f32>) -> ({WINDOW}, {TAIL}, {MAIN}, !dsv41.tensor<[T, 64], bf16>) attributes {{{SYMBOLS}, dsv41.outputs = ["window.0", "tail.0", "main.0", "out"]}} {{
  %none = torch.constant.none
  %int0 = torch.constant.int 0
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %float = torch.constant.float 1.0e-06
  %inf = torch.constant.float 0xFFF0000000000000
  %true = torch.constant.bool true
  %str = torch.constant.str "floor"
  %size = torch.aten.size.int %x, %int0 : !dsv41.tensor<[T, 64], bf16>, !torch.int -> !torch.int
  %list = torch.prim.ListConstruct %size, %int-1 : (!torch.int, !torch.int) -> !torch.list<int>
  %flat = torch.aten.view %query, %list : !dsv41.tensor<[T, 2, 64], bf16>, !torch.list<int> -> !dsv41.tensor<[T, 128], bf16>
  %rows = dsv41.quantize %x {{row_format = "fp8_e8m0"}} : !dsv41.tensor<[T, 64], bf16> -> {ROWS}
  %back = dsv41.dequantize %rows {{row_format = "fp8_e8m0"}} : {ROWS} -> !dsv41.tensor<[T, 64], bf16>
  %fake = dsv41.fake_quantize %back {{row_format = "fp4_e4m3"}} : !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  %wq = dsv41.weight {{name = "wq.weight", source = "checkpoint"}} : !dsv41.tensor<[64, 64], f8E4M3FN>
  %wq.scale = dsv41.weight {{name = "wq.scale", source = "checkpoint"}} : !dsv41.tensor<[2, 2], ui8>
  %wide = dsv41.dequantize_weight %wq, %wq.scale : !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[64, 64], bf16>
  %linear = torch.aten.linear %fake, %wide, %none : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], bf16>, !torch.none -> !dsv41.tensor<[T, 64], bf16>
  %mix = dsv41.sinkhorn %logits {{iterations = 20, eps = 1.0e-06}} : !dsv41.tensor<[T, 4, 4], f32> -> !dsv41.tensor<[T, 4, 4], f32>
  %scores = torch.aten.sum.dim_IntList %mix, %axes, %true, %none : !dsv41.tensor<[T, 4, 4], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 4, 1], f32>
  %scores4 = torch.aten.squeeze.dim %scores, %int-1 : !dsv41.tensor<[T, 4, 1], f32>, !torch.int -> !dsv41.tensor<[T, 4], f32>
  %chosen = dsv41.select_experts %scores4 {{k = 2}} : !dsv41.tensor<[T, 4], f32> -> !dsv41.tensor<[T, 2], si64>
  %expert_bias = dsv41.weight {{name = "gate.bias", source = "checkpoint"}} : !dsv41.tensor<[4], f32>
  %best, %best.weights = dsv41.route_experts %scores4, %expert_bias {{k = 2, scale = 1.5}} : !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[4], f32> -> !dsv41.tensor<[T, 2], si64>, !dsv41.tensor<[T, 2], f32>
  %routing = torch.aten.gather %scores4, %int-1, %chosen, %false : !dsv41.tensor<[T, 4], f32>, !torch.int, !dsv41.tensor<[T, 2], si64>, !torch.bool -> !dsv41.tensor<[T, 2], f32>
  %stack.list = torch.prim.ListConstruct %x, %x, %x, %x : (!dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>) -> !torch.list<vtensor>
  %streams = torch.aten.stack %stack.list, %int1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 4, 64], bf16>
  %mhc.fn = dsv41.weight {{name = "hc_attn_fn", source = "checkpoint"}} : !dsv41.tensor<[24, 256], f32>
  %mhc.base = dsv41.weight {{name = "hc_attn_base", source = "checkpoint"}} : !dsv41.tensor<[24], f32>
  %mhc.scale = dsv41.weight {{name = "hc_attn_scale", source = "checkpoint"}} : !dsv41.tensor<[3], f32>
  %mhc.norm = dsv41.weight {{name = "attn_norm.weight", source = "checkpoint"}} : !dsv41.tensor<[64], bf16>
  %w1 = dsv41.weight {{name = "experts.*.w1.weight", source = "checkpoint"}} : !dsv41.tensor<[4, 32, 32], ui8>
  %s1 = dsv41.weight {{name = "experts.*.w1.scale", source = "checkpoint"}} : !dsv41.tensor<[4, 32, 2], ui8>
  %w2 = dsv41.weight {{name = "experts.*.w2.weight", source = "checkpoint"}} : !dsv41.tensor<[4, 64, 16], ui8>
  %s2 = dsv41.weight {{name = "experts.*.w2.scale", source = "checkpoint"}} : !dsv41.tensor<[4, 64, 1], ui8>
  %first, %second = dsv41.linears %fake, %wq, %wq.scale, %wq, %wq.scale {{groups = 1, quantize = 1}} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>
  %sums = dsv41.linear_bf16 %fake, %wide {{wide = 1}} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], bf16> -> !dsv41.tensor<[T, 64], f32>
  %packed = dsv41.linear_fp8 %fake, %wq, %wq.scale {{groups = 1}} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %routed = dsv41.experts %linear, %chosen, %routing, %w1, %s1, %w1, %s1, %w2, %s2 {{limit = 10.0}} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 2], si64>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 64, 16], ui8>, !dsv41.tensor<[4, 64, 1], ui8> -> !dsv41.tensor<[T, 64], f32>
  %shared = dsv41.moe %fake, %chosen, %routing, %w1, %s1, %w1, %s1, %w2, %s2, %wq, %wq.scale, %wq, %wq.scale, %wq, %wq.scale {{limit = 10.0}} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 2], si64>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 64, 16], ui8>, !dsv41.tensor<[4, 64, 1], ui8>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8>, !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[T, 64], bf16>
  %multipliers = dsv41.weight {{name = "multipliers", source = "derived"}} : !dsv41.tensor<[3], si64>
  %primes = dsv41.weight {{name = "primes", source = "derived"}} : !dsv41.tensor<[4], si64>
  %hashed = dsv41.ngram_hash %ids, %multipliers, %primes, %primes : !dsv41.tensor<[T, 3], si64>, !dsv41.tensor<[3], si64>, !dsv41.tensor<[4], si64>, !dsv41.tensor<[4], si64> -> !dsv41.tensor<[T, 4], si64>
  %table = dsv41.weight {{name = "table.weight", source = "checkpoint"}} : !dsv41.tensor<[40, 32], f8E4M3FN>
  %table.scale = dsv41.weight {{name = "table.scale", source = "checkpoint"}} : !dsv41.tensor<[40, 1], ui8>
  %embedded = dsv41.lookup %table, %table.scale, %hashed : !dsv41.tensor<[40, 32], f8E4M3FN>, !dsv41.tensor<[40, 1], ui8>, !dsv41.tensor<[T, 4], si64> -> !dsv41.tensor<[T, 128], bf16>
  %freq = dsv41.weight {{name = "inv_freq", source = "derived"}} : !dsv41.tensor<[8], f32>
  %cos, %sin = dsv41.rotary %slots, %freq : {SLOTS}, !dsv41.tensor<[8], f32> -> !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>
  %topk, %blocks = dsv41.index_topk %index_query, %index_weights, %index.0, %pages, %slots, %slots, none {{ratio = 2, k = 4, page = 4, block = 2, n_blocks = 3}} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], bf16>, {INDEX}, !dsv41.tensor<[B, P], si64>, {SLOTS}, {SLOTS}, none -> !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 3], si32>
  %topk_pool, %blocks_pool = dsv41.index_topk %index_query, %index_weights, %index.0, %pages, %slots, %slots, %candidates {{ratio = 2, k = 4, page = 4, block = 2, n_blocks = 0}} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], bf16>, {INDEX}, !dsv41.tensor<[B, P], si64>, {SLOTS}, {SLOTS}, !dsv41.tensor<[T, 3], si32> -> !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 0], si32>
  %pool_topk = dsv41.index_pool_topk %index_query, %index_weights, %index.0, %pages, %slots, %slots, %candidates {{ratio = 2, k = 4, page = 4, block = 2}} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], bf16>, {INDEX}, !dsv41.tensor<[B, P], si64>, {SLOTS}, {SLOTS}, !dsv41.tensor<[T, 3], si32> -> !dsv41.tensor<[T, 4], si32>
  %attended = dsv41.sparse_attention %query, %window.0, %rows, %window_index, %main.0, %main_slots, %sink {{scale = 0.125, window_page = 8, main_page = 4}} : !dsv41.tensor<[T, 2, 64], bf16>, {WINDOW}, {ROWS}, !dsv41.tensor<[T, 8], si32>, {MAIN}, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 64], bf16>
  %local = dsv41.sparse_attention %query, %window.0, %rows, %window_index, none, none, %sink {{scale = 0.125, window_page = 8, main_page = 4}} : !dsv41.tensor<[T, 2, 64], bf16>, {WINDOW}, {ROWS}, !dsv41.tensor<[T, 8], si32>, none, none, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 64], bf16>
  %queries = torch.aten.flatten.using_ints %query, %int1, %int-1 : !dsv41.tensor<[T, 2, 64], bf16>, !torch.int, !torch.int -> !dsv41.tensor<[T, 128], bf16>
  %turned = dsv41.attend %queries, %cos, %sin, %window.0, %rows, %window_index, %main.0, %main_slots, %sink {{scale = 0.125, window_page = 8, main_page = 4}} : !dsv41.tensor<[T, 128], bf16>, !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, {WINDOW}, {ROWS}, !dsv41.tensor<[T, 8], si32>, {MAIN}, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 128], bf16>
  %window_1 = dsv41.store %window.0, %rows, %slots {{row_format = "fp8_e8m0", page = 8, in_place}} : {WINDOW}, {ROWS}, {SLOTS} -> {WINDOW}
  %tail_1 = dsv41.launch "store"(%tail.0, %tail_rows, %slots) {{row_format = "f32", page = 8}} : ({TAIL}, !dsv41.tensor<[T, 6], f32>, {SLOTS}) -> ({TAIL})
  %read = dsv41.load %window_1, %slots {{row_format = "fp8_e8m0", page = 8, row_width = 66}} : {WINDOW}, {SLOTS} -> {ROWS}
  %buffer = dsv41.storage %window_1 : {WINDOW} -> !dsv41.tensor<[S, 528], ui8>
  %mhc.h, %mhc.x, %mhc.pre, %mhc.post, %mhc.comb = dsv41.mhc_site %x, %streams, %scores4, %mix, %scores4, %mhc.fn, %mhc.base, %mhc.scale, %mhc.norm {{iterations = 20, eps = 1.0e-06, mix_eps = 1.0e-20, norm_eps = 1.0e-20}} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 4, 64], bf16>, !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4, 4], f32>, !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[24, 256], f32>, !dsv41.tensor<[24], f32>, !dsv41.tensor<[3], f32>, !dsv41.tensor<[64], bf16> -> !dsv41.tensor<[T, 4, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4, 4], f32>
  %entered, %enter.pre, %enter.post, %enter.comb = dsv41.mhc_enter %mhc.h, %mhc.pre, %mhc.fn, %mhc.base, %mhc.scale, %mhc.norm {{iterations = 20, eps = 1.0e-06, mix_eps = 1.0e-20, norm_eps = 1.0e-20}} : !dsv41.tensor<[T, 4, 64], bf16>, !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[24, 256], f32>, !dsv41.tensor<[24], f32>, !dsv41.tensor<[3], f32>, !dsv41.tensor<[64], bf16> -> !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4, 4], f32>
  %left = dsv41.mhc_leave %entered, %mhc.h, %enter.post, %enter.comb, %enter.pre, %mhc.norm, %slots {{norm_eps = 1.0e-20}} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 4, 64], bf16>, !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4, 4], f32>, !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[64], bf16>, {SLOTS} -> !dsv41.tensor<[T, 64], bf16>
  %packed_rows = dsv41.pack_rows %x, %cos, %sin, none {{norm_eps = 0.0, row_format = "fp8_e8m0"}} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, none -> {ROWS}
  %main_1 = dsv41.write_rows %main.0, %x, %cos, %sin, %mhc.norm, %slots {{norm_eps = 1.0e-06, row_format = "fp4_e4m3", page = 4, in_place}} : {MAIN}, !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[64], bf16>, {SLOTS} -> {MAIN}
  %called = dsv41.call @square(%linear) : (!dsv41.tensor<[T, 64], bf16>) -> (!dsv41.tensor<[T, 64], bf16>)
  %launched = dsv41.launch "square"(%called) {{origin = "a.py:1, to-launches"}} : (!dsv41.tensor<[T, 64], bf16>) -> (!dsv41.tensor<[T, 64], bf16>)
  func.return %window_1, %tail_1, %main_1, %launched : {WINDOW}, {TAIL}, {MAIN}, !dsv41.tensor<[T, 64], bf16>
}}
"""  # noqa: E501
EVERYTHING = EVERYTHING.replace(
    "  %size = torch.aten.size.int",
    """  %false = torch.constant.bool false
  %axes = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
  %size = torch.aten.size.int""",
)
