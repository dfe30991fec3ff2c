// RUN: state-in-place,to-launches
// MATCHES: 2
// An absent operand stays absent, and a store in place stays in place.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %slots: !dsv41.tensor<[T], si64>, %q: !dsv41.tensor<[T, 2, 32], bf16>, %qw: !dsv41.tensor<[T, 2], bf16>, %pages: !dsv41.tensor<[S, 3], si64>, %index: !dsv41.cache<"index", owner 0, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>, %tail: !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>) -> (!dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 4], si32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %topk, %blocks = dsv41.index_topk %q, %qw, %index, %pages, %slots, %slots, none {ratio = 2, k = 4, page = 4, block = 2, n_blocks = 0} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], bf16>, !dsv41.cache<"index", owner 0, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>, !dsv41.tensor<[S, 3], si64>, !dsv41.tensor<[T], si64>, !dsv41.tensor<[T], si64>, none -> !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 0], si32>
  %first = dsv41.store %tail, %x, %slots {row_format = "f32", page = 8} : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>
  func.return %first, %topk : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 4], si32>
}

// CHECK:      %topk, %blocks = dsv41.launch "index_topk"(%q, %qw, %index, %pages, %slots, %slots, none) {ratio = 2, k = 4
// CHECK-NEXT: %first = dsv41.launch "store"(%tail, %x, %slots) {{{.*}}in_place
