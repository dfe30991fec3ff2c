// RUN: plan-memory{budget=60000}
// MATCHES: 4
// While %b is computed 73,728 bytes are held. Tiles bring that under the budget at the least cost where %s is inside them
// too; what comes behind is not cut.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %s = dsv41.launch "double"(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %a = dsv41.launch "widen"(%s) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 24], f32>)
  %b = dsv41.launch "narrow"(%a) : (!dsv41.tensor<[T, 24], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %y = dsv41.launch "double"(%b) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

func.func @double(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %a = torch.aten.add.Tensor %x, %x, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %a : !dsv41.tensor<[T, 6], f32>
}

func.func @widen(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 24], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %list = torch.prim.ListConstruct %x, %x, %x, %x : (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>) -> !torch.list<vtensor>
  %a = torch.aten.cat %list, %int1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 24], f32>
  func.return %a : !dsv41.tensor<[T, 24], f32>
}

func.func @narrow(%x: !dsv41.tensor<[T, 24], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int6 = torch.constant.int 6
  %a = torch.aten.slice.Tensor %x, %int1, %int0, %int6, %int1 : !dsv41.tensor<[T, 24], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %a : !dsv41.tensor<[T, 6], f32>
}

// CHECK: %s = dsv41.launch "double"(%x) {tile = 0, tile_rows = 256, cut = [0]}
// CHECK: %a = dsv41.launch "widen"(%s) {tile = 0, tile_rows = 256, cut = [0]}
// CHECK: %b = dsv41.launch "narrow"(%a) {tile = 0, tile_rows = 256, cut = [0]}
// CHECK: %y = dsv41.launch "double"(%b)
