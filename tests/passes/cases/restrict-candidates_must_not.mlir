// RUN: restrict-candidates
// ERROR: a selection from a candidate pool publishes 3 candidate blocks of its own
// Its blocks are ranked over all entries.

func.func @f(%iq: !dsv41.tensor<[T, 2, 32], bf16>, %iw: !dsv41.tensor<[T, 2], bf16>, %pages: !dsv41.tensor<[B, P], si64>, %sequence: !dsv41.tensor<[T], si64>, %positions: !dsv41.tensor<[T], si64>, %candidates: !dsv41.tensor<[T, 3], si32>, %index.2: !dsv41.cache<"index", owner 2, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>) -> (!dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 3], si32>) attributes {dsv41.symbols = {T = [1, 512], B = [1, 64], P = [1, 9], N = [1, 99], S = [1, 4]}} {
  %topk, %topk_blocks = dsv41.index_topk %iq, %iw, %index.2, %pages, %sequence, %positions, %candidates {ratio = 2, k = 4, page = 4, block = 2, n_blocks = 3} : !dsv41.tensor<[T, 2, 32], bf16>, !dsv41.tensor<[T, 2], bf16>, !dsv41.cache<"index", owner 2, ratio 2, page 4, planar<e2m1 x 32 | ue8m0 / 32>>, !dsv41.tensor<[B, P], si64>, !dsv41.tensor<[T], si64>, !dsv41.tensor<[T], si64>, !dsv41.tensor<[T, 3], si32> -> !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 3], si32>
  func.return %topk, %topk_blocks : !dsv41.tensor<[T, 4], si32>, !dsv41.tensor<[T, 3], si32>
}
