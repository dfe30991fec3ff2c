// RUN: schedule
// MATCHES: 4
// %early is read last: made right before, it is not held while %a is there.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %early = dsv41.launch "widen"(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 24], f32>)
  %a = dsv41.launch "widen"(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 24], f32>)
  %b = dsv41.launch "narrow"(%a) : (!dsv41.tensor<[T, 24], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %y = dsv41.launch "join"(%early, %b) : (!dsv41.tensor<[T, 24], f32>, !dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  func.return %y : !dsv41.tensor<[T, 6], f32>
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

func.func @join(%x: !dsv41.tensor<[T, 24], f32>, %b: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int6 = torch.constant.int 6
  %a = torch.aten.slice.Tensor %x, %int1, %int0, %int6, %int1 : !dsv41.tensor<[T, 24], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 6], f32>
  %y = torch.aten.add.Tensor %a, %b, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

// CHECK:      %a = dsv41.launch "widen"(%x)
// CHECK-NEXT: %b = dsv41.launch "narrow"(%a)
// CHECK-NEXT: %early = dsv41.launch "widen"(%x)
// CHECK-NEXT: %y = dsv41.launch "join"(%early, %b)
