// A torch device (PrivateUse1) whose memory is host memory that the host reaches only by copies.
//
// A kernel runs at once, on the host, on a CPU tensor over the same memory. One stream: a kernel
// first waits for the operations of the communication library that the stream was told to wait for
// (`stream_waits`). So a missing wait gives wrong numbers, as on a GPU. Counts the moments in which
// the host waits for the device, and the bytes in use. Can run out of memory, and can fail for good.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

extern "C" int PyGILState_Check();
extern "C" void* PyEval_SaveThread();
extern "C" void PyEval_RestoreThread(void*);

namespace {

using at::Tensor;
constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// the stream

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<int64_t> running;   // operations of the communication library
  std::set<int64_t> awaited;   // those that the stream waits for
  std::string failure;         // of a kernel: the device is lost for this process
  std::atomic<int64_t> host_waits{0};

  void started(int64_t work) {
    std::lock_guard<std::mutex> lock(mutex);
    running.insert(work);
  }
  void finished(int64_t work) {
    std::lock_guard<std::mutex> lock(mutex);
    running.erase(work);
    awaited.erase(work);
    changed.notify_all();
  }
  void waits_for(int64_t work) {
    std::lock_guard<std::mutex> lock(mutex);
    if (running.count(work)) awaited.insert(work);
  }
  // Called before each kernel. The thread of the library needs Python's lock to go on.
  void join() {
    std::unique_lock<std::mutex> lock(mutex);
    TORCH_CHECK(failure.empty(), "emulated device error: ", failure);
    if (awaited.empty()) return;
    void* python = nullptr;
    if (PyGILState_Check()) {
      lock.unlock();
      python = PyEval_SaveThread();
      lock.lock();
    }
    changed.wait(lock, [this] { return awaited.empty(); });
    lock.unlock();
    if (python) PyEval_RestoreThread(python);
  }
  void wait_on_host() {
    host_waits++;
    join();
  }
};
Stream stream;

// memory

struct Memory {
  std::atomic<int64_t> used{0}, peak{0}, limit{0};
  void add(int64_t bytes) {
    const int64_t now = used += bytes;
    if (limit && now > limit) {
      used -= bytes;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "emulated device out of memory: tried to allocate ",
                       bytes, " bytes, ", now - bytes, " of ", limit.load(), " are in use");
    }
    for (int64_t most = peak; now > most && !peak.compare_exchange_weak(most, now);) {}
  }
};
Memory memory;

struct Block {  // owns device memory: its own, or that of the CPU tensor that a kernel returned
  explicit Block(int64_t bytes) : bytes(bytes) { memory.add(bytes); }
  ~Block() { memory.used -= bytes; if (own) c10::free_cpu(own); }
  int64_t bytes;
  void* own = nullptr;
  Tensor tensor;
};
void delete_block(void* block) { delete static_cast<Block*>(block); }

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block(static_cast<int64_t>(bytes));
    block->own = bytes ? c10::alloc_cpu(bytes) : nullptr;
    return {block->own, block, &delete_block, c10::Device(kDevice, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator);

struct PinnedAllocator final : c10::Allocator {
  mutable std::mutex mutex;
  std::set<const void*> blocks;
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool has(const void* data) const {
    std::lock_guard<std::mutex> lock(mutex);
    return blocks.count(data) > 0;
  }
};
PinnedAllocator pinned;
void delete_pinned(void* data) {
  {
    std::lock_guard<std::mutex> lock(pinned.mutex);
    pinned.blocks.erase(data);
  }
  c10::free_cpu(data);
}
c10::DataPtr PinnedAllocator::allocate(size_t bytes) {
  void* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
  if (!data) return {nullptr, c10::Device(c10::DeviceType::CPU)};
  std::lock_guard<std::mutex> lock(mutex);
  blocks.insert(data);
  return {data, data, &delete_pinned, c10::Device(c10::DeviceType::CPU)};
}

// tensors of one memory, as the device and as the host see them

void delete_storage(void* storage) { delete static_cast<c10::Storage*>(storage); }

Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  return made;
}

Tensor host_view(const Tensor& t) {
  if (!t.defined() || t.device().type() != kDevice) return t;
  const c10::Storage& storage = t.storage();
  c10::DataPtr data(const_cast<void*>(storage.data()), new c10::Storage(storage), &delete_storage,
                    c10::Device(c10::DeviceType::CPU));
  c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data),
                    c10::GetCPUAllocator(), true);
  return tensor_over(std::move(same), c10::DispatchKey::CPU, t);
}

Tensor take_to_device(const Tensor& t) {
  auto* block = new Block(static_cast<int64_t>(t.storage().nbytes()));
  block->tensor = t;
  c10::DataPtr data(const_cast<void*>(t.storage().data()), block, &delete_block,
                    c10::Device(kDevice, 0));
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), std::move(data),
                       &allocator, true);
  return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, t);
}

// kernels

class Call {  // one call of an operator, on the host
 public:
  explicit Call(torch::jit::Stack* stack) : stack_(stack) {}

  void run(const c10::OperatorHandle& op) {
    stream.join();
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    const auto& schema = op.schema();
    for (size_t i = stack_->size() - schema.arguments().size(); i < stack_->size(); i++)
      (*stack_)[i] = to_host((*stack_)[i]);
    op.callBoxed(stack_);
    for (auto& [device, host] : arguments_) keep_resized(device, host);
    for (size_t i = stack_->size() - schema.returns().size(); i < stack_->size(); i++)
      (*stack_)[i] = to_device((*stack_)[i]);
  }

 private:
  Tensor to_host(const Tensor& t) {
    if (!t.defined() || t.device().type() != kDevice) return t;
    arguments_.emplace_back(t, host_view(t));
    return arguments_.back().second;
  }
  c10::IValue to_host(const c10::IValue& value) {
    if (value.isTensor()) return to_host(value.toTensor());
    if (value.isDevice() && value.toDevice().type() == kDevice)
      return c10::Device(c10::DeviceType::CPU);
    if (value.isTensorList()) {
      c10::List<Tensor> all;
      for (const Tensor& t : value.toTensorVector()) all.push_back(to_host(t));
      return all;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> all;
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
        all.push_back(t ? std::make_optional(to_host(*t)) : std::nullopt);
      return all;
    }
    return value;
  }
  Tensor to_device(const Tensor& t) {
    if (!t.defined() || !t.device().is_cpu()) return t;
    for (auto& [device, host] : arguments_) {
      if (host.is_same(t)) return device;
      if (t.storage().data() && t.storage().data() == device.storage().data())  // a view
        return tensor_over(device.storage(), c10::DispatchKey::PrivateUse1, t);
    }
    return take_to_device(t);
  }
  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor()) return to_device(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> all;
      for (const Tensor& t : value.toTensorVector()) all.push_back(to_device(t));
      return all;
    }
    return value;
  }
  void keep_resized(const Tensor& device, const Tensor& host) {
    if (host.sizes() == device.sizes() && host.storage().data() == device.storage().data()) return;
    at::native::resize_impl_cpu_(device.unsafeGetTensorImpl(), host.sizes(), std::nullopt);
    auto view = host_view(device);
    view.copy_(host);
  }

  torch::jit::Stack* stack_;
  std::vector<std::pair<Tensor, Tensor>> arguments_;
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(stack).run(op); }

c10::OperatorHandle find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  Call(stack).run(find("aten::convolution"));
}

void convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // aten::convolution_backward has one argument more: the sizes of the bias
  const auto first = stack->size() - op.schema().arguments().size();
  const auto weight = (*stack)[first + 2].toTensor();
  const bool transposed = (*stack)[first + 6].toBool();
  const int64_t groups = (*stack)[first + 8].toInt();
  const int64_t bias = transposed ? weight.size(1) * groups : weight.size(0);
  stack->insert(stack->begin() + static_cast<int64_t>(first) + 3, c10::List<int64_t>({bias}));
  Call(stack).run(find("aten::convolution_backward"));
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& t, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  at::native::resize_impl_cpu_(t.unsafeGetTensorImpl(), size, std::nullopt);
  if (format) t.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return t;
}

Tensor& set_storage(Tensor& t, c10::Storage storage) {
  const auto size = static_cast<int64_t>(storage.nbytes() / t.element_size());
  return at::native::set_storage_cpu_(t, std::move(storage), 0, {size}, {1});
}

Tensor copy_tensor(const Tensor& from, const Tensor& to, bool non_blocking) {
  const bool to_host = to.device().is_cpu(), from_host = from.device().is_cpu();
  const bool is_async = non_blocking && (from_host || (to_host && pinned.has(to.storage().data())));
  if ((to_host || from_host) && !is_async) stream.wait_on_host();
  stream.join();
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  auto target = host_view(to);
  target.copy_(host_view(from));
  return to;
}

Tensor copy_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_tensor(from, to, false);
}

at::Scalar read_number(const Tensor& t) {
  stream.wait_on_host();
  return at::_local_scalar_dense(host_view(t));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("_copy_from", TORCH_FN(copy_tensor));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(read_number));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view.dtype", TORCH_FN(at::native::view_dtype));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

// what torch asks of a device

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device getDevice() const override { return {kDevice, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream same) const override { return same; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { stream.wait_on_host(); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  bool isPinnedPtr(const void* data) const override { return pinned.has(data); }
};

// for Python

TORCH_LIBRARY(ones_emulated, m) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("host_view(Tensor t) -> Tensor", [](const Tensor& t) { return host_view(t); });
  m.def("started(int work) -> ()", [](int64_t work) { stream.started(work); });
  m.def("finished(int work) -> ()", [](int64_t work) { stream.finished(work); });
  m.def("stream_waits(int work) -> ()", [](int64_t work) { stream.waits_for(work); });
  m.def("synchronise() -> ()", [] { stream.wait_on_host(); });
  m.def("host_waits() -> int", [] { return stream.host_waits.load(); });
  m.def("bytes_used() -> int", [] { return memory.used.load(); });
  m.def("peak_bytes() -> int", [] { return memory.peak.load(); });
  m.def("reset_peak() -> ()", [] { memory.peak = memory.used.load(); });
  m.def("most_bytes() -> int", [] { return memory.limit.load(); });
  m.def("limit_bytes(int bytes) -> ()", [](int64_t bytes) { memory.limit = bytes; });
  m.def("fail(str why) -> ()", [](const std::string& why) {
    std::lock_guard<std::mutex> lock(stream.mutex);
    stream.failure = why;
  });
}

}  // namespace
