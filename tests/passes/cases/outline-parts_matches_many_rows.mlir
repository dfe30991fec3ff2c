// RUN: outline-parts
// MATCHES: 4
// For many rows: what stands before and behind the products.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %z: !dsv41.tensor<[T, 64], bf16>, %ids: !dsv41.tensor<[T, 2], si64>, %routing: !dsv41.tensor<[T, 2], f32>, %w1_32: !dsv41.tensor<[4, 32, 32], ui8>, %s1_32: !dsv41.tensor<[4, 32, 2], ui8>, %w3_32: !dsv41.tensor<[4, 32, 32], ui8>, %s3_32: !dsv41.tensor<[4, 32, 2], ui8>, %w2_32: !dsv41.tensor<[4, 64, 16], ui8>, %s2_32: !dsv41.tensor<[4, 64, 1], ui8>) -> (!dsv41.tensor<[T, 64], f32>, !dsv41.tensor<[T, 64], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %a = dsv41.experts %x, %ids, %routing, %w1_32, %s1_32, %w3_32, %s3_32, %w2_32, %s2_32 {limit = 10.0, origin = "moe.py:7"} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 2], si64>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 64, 16], ui8>, !dsv41.tensor<[4, 64, 1], ui8> -> !dsv41.tensor<[T, 64], f32>
  %b = dsv41.experts %z, %ids, %routing, %w1_32, %s1_32, %w3_32, %s3_32, %w2_32, %s2_32 {limit = 10.0, origin = "moe.py:7"} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 2], si64>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 64, 16], ui8>, !dsv41.tensor<[4, 64, 1], ui8> -> !dsv41.tensor<[T, 64], f32>
  func.return %a, %b : !dsv41.tensor<[T, 64], f32>, !dsv41.tensor<[T, 64], f32>
}

// CHECK:      %a = dsv41.experts %x{{.*}}unpack = "part_0", activate = "part_1"
// CHECK-NEXT: %b = dsv41.experts %z{{.*}}unpack = "part_0", activate = "part_1"
// CHECK:      func.func @part_0(%arg0: !dsv41.tensor<[32, 32], ui8>
// CHECK:      func.func @part_1(%arg0: !dsv41.tensor<[M, 32], bf16>
// CHECK-NOT:  func.func @part_2
