// RUN: hoist-engram
// MATCHES: 0
// The ids are read from a cache behind a write: the write keeps its place, and so does all that needs it.

func.func @f(%tokens: !dsv41.tensor<[T], si64>, %ids: !dsv41.tensor<[T, 3], si64>, %x: !dsv41.tensor<[T, 64], bf16>, %multipliers: !dsv41.tensor<[3], si64>, %primes: !dsv41.tensor<[2], si64>, %offsets: !dsv41.tensor<[2], si64>, %table: !dsv41.tensor<[40, 32], f8E4M3FN>, %scale: !dsv41.tensor<[40, 1], ui8>, %history: !dsv41.cache<"history", owner -1, ratio 0, page 8, planar<si32 x 1>>, %fresh: !dsv41.tensor<[T, 1], si32>, %slots: !dsv41.tensor<[T], si64>, %read: !dsv41.tensor<[T, 3], si64>) -> (!dsv41.cache<"history", owner -1, ratio 0, page 8, planar<si32 x 1>>, !dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %int-1 = torch.constant.int -1
  %none = torch.constant.none
  %false = torch.constant.bool false
  %a = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  %written = dsv41.store %history, %fresh, %slots {row_format = "i32", page = 8} : !dsv41.cache<"history", owner -1, ratio 0, page 8, planar<si32 x 1>>, !dsv41.tensor<[T, 1], si32>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"history", owner -1, ratio 0, page 8, planar<si32 x 1>>
  %loaded = dsv41.load %written, %read {row_format = "i32", page = 8, row_width = 1} : !dsv41.cache<"history", owner -1, ratio 0, page 8, planar<si32 x 1>>, !dsv41.tensor<[T, 3], si64> -> !dsv41.tensor<[T, 3, 1], si32>
  %flat = torch.aten.squeeze.dim %loaded, %int-1 : !dsv41.tensor<[T, 3, 1], si32>, !torch.int -> !dsv41.tensor<[T, 3], si32>
  %clamped = torch.aten.to.dtype %flat, %int4, %false, %false, %none : !dsv41.tensor<[T, 3], si32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 3], si64>
  %rows = dsv41.ngram_hash %clamped, %multipliers, %primes, %offsets : !dsv41.tensor<[T, 3], si64>, !dsv41.tensor<[3], si64>, !dsv41.tensor<[2], si64>, !dsv41.tensor<[2], si64> -> !dsv41.tensor<[T, 2], si64>
  %e = dsv41.lookup %table, %scale, %rows : !dsv41.tensor<[40, 32], f8E4M3FN>, !dsv41.tensor<[40, 1], ui8>, !dsv41.tensor<[T, 2], si64> -> !dsv41.tensor<[T, 64], bf16>
  %y = torch.aten.add.Tensor %a, %e, %int1 : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 64], bf16>, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  func.return %written, %y : !dsv41.cache<"history", owner -1, ratio 0, page 8, planar<si32 x 1>>, !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %a = torch.aten.mul.Tensor %x, %x
// CHECK-NEXT: %written = dsv41.store %history
// CHECK-NEXT: %loaded = dsv41.load %written
// CHECK: %rows = dsv41.ngram_hash %clamped
// CHECK-NEXT: %e = dsv41.lookup %table, %scale, %rows
