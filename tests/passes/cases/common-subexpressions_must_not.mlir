// RUN: common-subexpressions
// MATCHES: 0
// Other operands, other constants and other types are other values; 1, 1.0 and true are three.

func.func @f(%x: !dsv41.tensor<[T, 8], f32>, %y: !dsv41.tensor<[T, 8], f32>) -> (!dsv41.tensor<[T, 8], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %int1 = torch.constant.int 1
  %float1 = torch.constant.float 1.0
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.0
  %minus = torch.constant.float -0.0
  %a = torch.aten.mul.Tensor %x, %y : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %b = torch.aten.mul.Tensor %y, %x : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %c = torch.aten.mul.Scalar %a, %int1 : !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %d = torch.aten.mul.Scalar %a, %float1 : !dsv41.tensor<[T, 8], f32>, !torch.float -> !dsv41.tensor<[T, 8], f32>
  %e = torch.aten.mul.Scalar %b, %zero : !dsv41.tensor<[T, 8], f32>, !torch.float -> !dsv41.tensor<[T, 8], f32>
  %g = torch.aten.mul.Scalar %b, %minus : !dsv41.tensor<[T, 8], f32>, !torch.float -> !dsv41.tensor<[T, 8], f32>
  %h = torch.aten.mul.Tensor %c, %d : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %i = torch.aten.mul.Tensor %e, %g : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %j = torch.aten.mul.Tensor %h, %i : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  func.return %j : !dsv41.tensor<[T, 8], f32>
}

// CHECK: %zero = torch.constant.float 0.0
// CHECK-NEXT: %minus = torch.constant.float -0.0
// CHECK: %b = torch.aten.mul.Tensor %y, %x
// CHECK: %d = torch.aten.mul.Scalar %a, %float1
// CHECK: %g = torch.aten.mul.Scalar %b, %minus
