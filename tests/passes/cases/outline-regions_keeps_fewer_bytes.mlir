// RUN: outline-regions
// MATCHES: 4
// What only the second region needs is computed there from %y: 24 bytes a row wait for it, and not 192.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %freq: !dsv41.tensor<[6], f32>) -> (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 48], f32>) attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %int0 = torch.constant.int 0
  %y = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  %list = torch.prim.ListConstruct %y, %y, %y, %y, %y, %y, %y, %y : (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>) -> !torch.list<vtensor>
  %wide = torch.aten.cat %list, %int1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 48], f32>
  %square = torch.aten.square %wide : !dsv41.tensor<[T, 48], f32> -> !dsv41.tensor<[T, 48], f32>
  %int4 = torch.constant.int 4
  %false = torch.constant.bool false
  %none = torch.constant.none
  %first = torch.aten.select.int %y, %int1, %int0 : !dsv41.tensor<[T, 6], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T], f32>
  %next = torch.aten.to.dtype %first, %int4, %false, %false, %none : !dsv41.tensor<[T], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T], si64>
  %cos, %sin = dsv41.rotary %next, %freq : !dsv41.tensor<[T], si64>, !dsv41.tensor<[6], f32> -> !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
  %column = torch.aten.slice.Tensor %cos, %int1, %int0, %int1, %int1 : !dsv41.tensor<[T, 6], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %z = torch.aten.mul.Tensor %square, %column : !dsv41.tensor<[T, 48], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 48], f32>
  func.return %y, %z : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 48], f32>
}

// CHECK:      %y, %next = dsv41.call @region_0(%x)
// CHECK:      %z = dsv41.call @region_1(%y, %cos)
// CHECK:      func.func @region_1
// CHECK:      torch.aten.cat
