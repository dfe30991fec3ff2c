// RUN: plan-memory{rows=16}
// MATCHES: 2
// Nothing behind the tile needs %a: rows of %y take the place of its rows, one tile after the other.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %a = dsv41.launch "center"(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %y = dsv41.launch "double"(%a) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

func.func @center(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %true = torch.constant.bool true
  %none = torch.constant.none
  %list = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
  %m = torch.aten.mean.dim %x, %list, %true, %none : !dsv41.tensor<[T, 6], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[1, 6], f32>
  %y = torch.aten.sub.Tensor %x, %m, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[1, 6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

func.func @double(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %a = torch.aten.add.Tensor %x, %x, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %a : !dsv41.tensor<[T, 6], f32>
}

// CHECK: %a = dsv41.launch "center"(%x) :
// CHECK: %y = dsv41.launch "double"(%a) {tile = 0, tile_rows = 16, cut = [0], over = [0]}
