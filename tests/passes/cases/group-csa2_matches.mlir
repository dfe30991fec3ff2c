// RUN: group-csa2
// MATCHES: 5
// A full layer, one that reuses its entries by a list of its own (which goes), one that selects anew, and one without
// entries.

func.func @f(%q: !dsv41.tensor<[T, 2, 64], bf16>, %iq: !dsv41.tensor<[T, 2, 32], bf16>, %iw: !dsv41.tensor<[T, 2], bf16>, %fresh: !dsv41.tensor<[T, 66], ui8>, %window_index: !dsv41.tensor<[T, 8], si32>, %sink: !dsv41.tensor<[2], f32>, %pages: !dsv41.tensor<[B, P], si64>, %sequence: !dsv41.tensor<[T], si64>, %positions: !dsv41.tensor<[T], si64>, %rows: !dsv41.tensor<[T, 36], ui8>, %slots: !dsv41.tensor<[T], si64>, %window.0: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %window.1: !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %window.2: !dsv41.cache<"window", owner 2, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %window.3: !dsv41.cache<"window", owner 3, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %main.2: !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, %index.2: !dsv41.cache<"index", owner 2, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>) -> (!dsv41.tensor<[T, 2, 64], bf16>, !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>) attributes {dsv41.symbols = {T = [1, 512], B = [1, 64], P = [1, 9], N = [1, 99], S = [1, 4]}} {
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %main_1 = dsv41.store %main.2, %rows, %slots {row_format = "fp4_e4m3", page = 4} : !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 36], ui8>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>
  %topk, %topk_blocks = dsv41.index_topk %iq, %iw, %index.2, %pages, %sequence, %positions, none {ratio = 2, k = 4, page = 4, block = 2, n_blocks = 3} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], bf16>, !dsv41.cache<"index", owner 2, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>, !dsv41.tensor<[B, P], si64>, !dsv41.tensor<[T], si64>, !dsv41.tensor<[T], si64>, none -> !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 3], si32>
  %list_owner = torch.aten.floor_divide.Scalar %topk, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list_inside = torch.aten.remainder.Scalar %topk, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list_first = torch.aten.mul.Scalar %list_owner, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list = torch.aten.add.Tensor %list_first, %list_inside, %int1 : !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %a = dsv41.sparse_attention %q, %window.1, %fresh, %window_index, %main_1, %list, %sink {scale = 0.125, window_page = 8, main_page = 4} : !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"window", owner 1, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 64], bf16>
  %again_owner = torch.aten.floor_divide.Scalar %topk, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %again_inside = torch.aten.remainder.Scalar %topk, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %again_first = torch.aten.mul.Scalar %again_owner, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %again = torch.aten.add.Tensor %again_first, %again_inside, %int1 : !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %b = dsv41.sparse_attention %q, %window.2, %fresh, %window_index, %main_1, %again, %sink {scale = 0.125, window_page = 8, main_page = 4} : !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"window", owner 2, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 64], bf16>
  %topk2, %topk2_blocks = dsv41.index_topk %iq, %iw, %index.2, %pages, %sequence, %positions, %topk_blocks {ratio = 2, k = 4, page = 4, block = 2, n_blocks = 0} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], bf16>, !dsv41.cache<"index", owner 2, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>, !dsv41.tensor<[B, P], si64>, !dsv41.tensor<[T], si64>, !dsv41.tensor<[T], si64>, !dsv41.tensor<[T, 3], si32> -> !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 0], si32>
  %list2_owner = torch.aten.floor_divide.Scalar %topk2, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list2_inside = torch.aten.remainder.Scalar %topk2, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list2_first = torch.aten.mul.Scalar %list2_owner, %int4 : !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %list2 = torch.aten.add.Tensor %list2_first, %list2_inside, %int1 : !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 4], si32>, !torch.int -> !dsv41.tensor<[T, 4], si32>
  %c = dsv41.sparse_attention %q, %window.3, %fresh, %window_index, %main_1, %list2, %sink {scale = 0.125, window_page = 8, main_page = 4} : !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"window", owner 3, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>, !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 64], bf16>
  %d = dsv41.sparse_attention %q, %window.0, %fresh, %window_index, none, none, %sink {scale = 0.125, window_page = 8, main_page = 4} : !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 8], si32>, none, none, !dsv41.tensor<[2], f32> -> !dsv41.tensor<[T, 2, 64], bf16>
  func.return %a, %b, %c, %d, %main_1 : !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.tensor<[T, 2, 64], bf16>, !dsv41.cache<"main", owner 2, ratio 2, page 4, planar<e2m1 x 64 | e4m3 / 16>>
}

// CHECK:      %topk, %topk_blocks = dsv41.index_topk {{.*}}mode = "full", source = "main.2", group = 0
// CHECK:      %list = torch.aten.add.Tensor
// CHECK-NEXT: %a = dsv41.sparse_attention %q, %window.1, %fresh, %window_index, %main_1, %list, %sink {{.*}}mode = "full", source = "main.2", group = 0
// CHECK-NEXT: %b = dsv41.sparse_attention %q, %window.2, %fresh, %window_index, %main_1, %list, %sink {{.*}}mode = "reuse", source = "main.2", group = 0
// CHECK-NEXT: %topk2, %topk2_blocks = dsv41.index_topk {{.*}}mode = "reindex", source = "main.2", group = 0
// CHECK:      %c = dsv41.sparse_attention %q, %window.3, %fresh, %window_index, %main_1, %list2, %sink {{.*}}mode = "reindex", source = "main.2", group = 0
// CHECK-NEXT: %d = dsv41.sparse_attention %q, %window.0, {{.*}}mode = "swa"
