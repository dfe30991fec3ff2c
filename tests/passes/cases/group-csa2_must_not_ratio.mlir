// RUN: group-csa2
// ERROR: attention of window.1 gathers from main.2 by a list chosen from index.2, and an entry is 2 and 1 tokens
// A list of entries of one token for a cache of entries of two.

func.func @f(%q: !dsv41.tensor<[T, 2, 64], bf16>, %iq: !dsv41.tensor<[T, 2, 32], bf16>, %iw: !dsv41.tensor<[T, 2], bf16>, %fresh: !dsv41.tensor<[T, 66], ui8>, %window_index: !dsv41.tensor<[T, 8], si32>, %sink: !dsv41.tensor<[2], f32>, %pages: !dsv41.tensor<[B, P], si64>, %sequence: !dsv41.tensor<[T], si64>, %positions: !dsv41.tensor<[T], si64>, %window.1: !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %main.2: !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, %index.2: !dsv41.cache<"index", owner 2, ratio 1, page 4, planar<e2m1 x 32 | ue8m0 / 32>>) -> (!dsv41.tensor<[T, 2, 64], bf16>) attributes {dsv41.symbols = {T = [1, 512], B = [1, 64], P = [1, 9], N = [1, 99], S = [1, 4]}} {
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %topk, %topk_blocks = dsv41.index_topk %iq, %iw, %index.2, %pages, %sequence, %positions, none {ratio = 1, k = 4, page = 4, block = 2, n_blocks = 0} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], bf16>, !dsv41.cache<"index", owner 2, ratio 1, page 4, planar<e2m1 x 32 | ue8m0 / 32>>, !dsv41.tensor<[B, P], si64>, !dsv41.tensor<[T], si64>, !dsv41.tensor<[T], si64>, none -> !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 0], si32>
  %list_owner = torch.aten.floor_divide.Scalar %topk, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list_inside = torch.aten.remainder.Scalar %topk, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list_first = torch.aten.mul.Scalar %list_owner, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list = torch.aten.add.Tensor %list_first, %list_inside, %int1 : !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %a = dsv41.sparse_attention %q, %window.1, %fresh, %window_index, %main.2, %list, %sink {scale = 0.125, window_page = 8, main_page = 4} : !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 64], bf16>
  func.return %a : !dsv41.tensor<[T, 2, 64], bf16>
}
