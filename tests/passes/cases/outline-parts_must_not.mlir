// RUN: outline-parts
// MATCHES: 4
// Experts of another size, or with another limit, are another function.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %z: !dsv41.tensor<[T, 64], bf16>, %ids: !dsv41.tensor<[T, 2], si64>, %routing: !dsv41.tensor<[T, 2], f32>, %w1_32: !dsv41.tensor<[4, 32, 32], ui8>, %s1_32: !dsv41.tensor<[4, 32, 2], ui8>, %w3_32: !dsv41.tensor<[4, 32, 32], ui8>, %s3_32: !dsv41.tensor<[4, 32, 2], ui8>, %w2_32: !dsv41.tensor<[4, 64, 16], ui8>, %s2_32: !dsv41.tensor<[4, 64, 1], ui8>, %w1_64: !dsv41.tensor<[4, 64, 32], ui8>, %s1_64: !dsv41.tensor<[4, 64, 2], ui8>, %w3_64: !dsv41.tensor<[4, 64, 32], ui8>, %s3_64: !dsv41.tensor<[4, 64, 2], ui8>, %w2_64: !dsv41.tensor<[4, 64, 32], ui8>, %s2_64: !dsv41.tensor<[4, 64, 2], ui8>) -> (!dsv41.tensor<[T, 64], f32>, !dsv41.tensor<[T, 64], f32>) attributes {dsv41.symbols = {T = [1, 1], S = [1, 4]}} {
  %a = dsv41.experts %x, %ids, %routing, %w1_32, %s1_32, %w3_32, %s3_32, %w2_32, %s2_32 {limit = 10.0, origin = "moe.py:7"} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 2], si64>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 32, 32], ui8>, !dsv41.tensor<[4, 32, 2], ui8>, !dsv41.tensor<[4, 64, 16], ui8>, !dsv41.tensor<[4, 64, 1], ui8> -> !dsv41.tensor<[T, 64], f32>
  %b = dsv41.experts %z, %ids, %routing, %w1_64, %s1_64, %w3_64, %s3_64, %w2_64, %s2_64 {limit = 10.0, origin = "moe.py:7"} : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[T, 2], si64>, !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[4, 64, 32], ui8>, !dsv41.tensor<[4, 64, 2], ui8>, !dsv41.tensor<[4, 64, 32], ui8>, !dsv41.tensor<[4, 64, 2], ui8>, !dsv41.tensor<[4, 64, 32], ui8>, !dsv41.tensor<[4, 64, 2], ui8> -> !dsv41.tensor<[T, 64], f32>
  func.return %a, %b : !dsv41.tensor<[T, 64], f32>, !dsv41.tensor<[T, 64], f32>
}

// CHECK: %a = dsv41.experts %x{{.*}}body = "part_0"
// CHECK: %b = dsv41.experts %z{{.*}}body = "part_1"
// CHECK: func.func @part_0(
// CHECK: func.func @part_1(
