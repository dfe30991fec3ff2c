// RUN: group-csa2
// MATCHES: 4
// A store that repeats the one before it, and a second cache that gets the same rows in the same slots.

func.func @f(%q: !dsv41.tensor<[T, 2, 64], bf16>, %iq: !dsv41.tensor<[T, 2, 32], bf16>, %iw: !dsv41.tensor<[T, 2], bf16>, %fresh: !dsv41.tensor<[T, 66], ui8>, %window_index: !dsv41.tensor<[T, 8], si32>, %sink: !dsv41.tensor<[2], f32>, %pages: !dsv41.tensor<[B, P], si64>, %sequence: !dsv41.tensor<[T], si64>, %positions: !dsv41.tensor<[T], si64>, %rows: !dsv41.tensor<[T, 36], ui8>, %slots: !dsv41.tensor<[T], si64>, %window.1: !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %window.2: !dsv41.cache<"window", owner 2, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %main.2: !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, %index.2: !dsv41.cache<"index", owner 2, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>, %main.3: !dsv41.cache<"main", owner 3, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>) -> (!dsv41.tensor<[T, 2, 64], bf16>, !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.cache<"main", owner 3, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>) attributes {dsv41.outputs = ["a", "b", "main.2", "main.3"], dsv41.symbols = {T = [1, 512], B = [1, 64], P = [1, 9], N = [1, 99], S = [1, 4]}} {
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %main_1 = dsv41.store %main.2, %rows, %slots {row_format = "fp4_e4m3", page = 4} : !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 36], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>
  %repeated = dsv41.store %main_1, %rows, %slots {row_format = "fp4_e4m3", page = 4} : !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 36], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>
  %topk, %topk_blocks = dsv41.index_topk %iq, %iw, %index.2, %pages, %sequence, %positions, none {ratio = 2, k = 4, page = 4, block = 2, n_blocks = 0} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], bf16>, !dsv41.cache<"index", owner 2, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>, !dsv41.tensor<[B, P], si64>, !dsv41.tensor<[T], si64>, !dsv41.tensor<[T], si64>, none -> !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 0], si32>
  %list_owner = torch.aten.floor_divide.Scalar %topk, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list_inside = torch.aten.remainder.Scalar %topk, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list_first = torch.aten.mul.Scalar %list_owner, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list = torch.aten.add.Tensor %list_first, %list_inside, %int1 : !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %a = dsv41.sparse_attention %q, %window.1, %fresh, %window_index, %repeated, %list, %sink {scale = 0.125, window_page = 8, main_page = 4} : !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 64], bf16>
  %copy_1 = dsv41.store %main.3, %rows, %slots {row_format = "fp4_e4m3", page = 4} : !dsv41.cache<"main", owner 3, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 36], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"main", owner 3, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>
  %b = dsv41.sparse_attention %q, %window.2, %fresh, %window_index, %copy_1, %list, %sink {scale = 0.125, window_page = 8, main_page = 4} : !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"window", owner 2, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, !dsv41.cache<"main", owner 3, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 64], bf16>
  func.return %a, %b, %repeated, %copy_1 : !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.cache<"main", owner 3, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>
}

// CHECK:     func.func @f
// CHECK-NOT: %main.3
// CHECK:     %main_1 = dsv41.store %main.2
// CHECK-NOT: dsv41.store
// CHECK:     %a = dsv41.sparse_attention {{.*}} %main_1, %list, {{.*}}mode = "full"
// CHECK:     %b = dsv41.sparse_attention {{.*}} %main_1, %list, {{.*}}mode = "reuse", source = "main.2"
// CHECK:     func.return %a, %b, %main_1 :
