// RUN: plan-memory{rows=16}
// MATCHES: 8
// No memory is taken from the caller's %x, from %a, which is returned, from %b, which may be %a, or from %c, of which any
// row may be read.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %at: !dsv41.tensor<[T], si64>) -> (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512]}} {
  %p = dsv41.launch "double"(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %a = dsv41.launch "center"(%p) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %q = dsv41.launch "double"(%a) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %b = dsv41.launch "same"(%a) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %r = dsv41.launch "double"(%b) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %c = dsv41.launch "center"(%r) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %s = dsv41.launch "take"(%c, %c, %at) : (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T], si64>) -> (!dsv41.tensor<[T, 6], f32>)
  func.return %p, %a, %q, %r, %s : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
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

func.func @same(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %int0 = torch.constant.int 0
  %v = torch.aten.transpose.int %x, %int0, %int1 : !dsv41.tensor<[T, 6], f32>, !torch.int, !torch.int -> !dsv41.tensor<[6, T], f32>
  %w = torch.aten.transpose.int %v, %int0, %int1 : !dsv41.tensor<[6, T], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %w : !dsv41.tensor<[T, 6], f32>
}

func.func @take(%a: !dsv41.tensor<[T, 6], f32>, %table: !dsv41.tensor<[T, 6], f32>, %at: !dsv41.tensor<[T], si64>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %list = torch.prim.ListConstruct %at : (!dsv41.tensor<[T], si64>) -> !torch.list<vtensor>
  %row = torch.aten.index.Tensor_hacked_twin %table, %list : !dsv41.tensor<[T, 6], f32>, !torch.list<vtensor> -> !dsv41.tensor<[T, 6], f32>
  %y = torch.aten.mul.Tensor %a, %row : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

// CHECK: %p = dsv41.launch "double"(%x) {tile = 0, tile_rows = 16, cut = [0]} :
// CHECK: %a = dsv41.launch "center"
// CHECK: %q = dsv41.launch "double"(%a) {tile = 1, tile_rows = 16, cut = [0]} :
// CHECK: %r = dsv41.launch "double"(%b) {tile = 2, tile_rows = 16, cut = [0]} :
// CHECK: %s = dsv41.launch "take"(%c, %c, %at) {tile = 3, tile_rows = 16, cut = [0, 2]} :
