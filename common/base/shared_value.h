// A large value that does not change once it is made, and that its copies share. Copying a
// SharedValue costs a reference count, however large the value is.
// Thread safety: copies may be used on different threads.
#pragma once

#include <memory>
#include <utility>

namespace tandem {

template <typename T>
class SharedValue {
 public:
  // A default T, shared by all.
  SharedValue() : value_(Default()) {}
  SharedValue(T value) : value_(std::make_shared<const T>(std::move(value))) {}  // NOLINT: implicit

  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_.get(); }
  // The value, to be changed: copies keep theirs, so a value that is shared is copied first.
  T& Edit() {
    auto own = std::make_shared<T>(*value_);
    T& value = *own;
    value_ = std::move(own);
    return value;
  }
  // Whether both are copies of one value.
  bool SharesWith(const SharedValue& other) const { return value_ == other.value_; }

 private:
  static const std::shared_ptr<const T>& Default() {
    static const auto* value = new std::shared_ptr<const T>(std::make_shared<const T>());
    return *value;
  }

  std::shared_ptr<const T> value_;  // immutable; shared with copies
};

}  // namespace tandem
