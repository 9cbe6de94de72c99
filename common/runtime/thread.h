// A named thread that is joined when its owner goes: the only way threads are made here.
// Thread safety: Join and the destructor by the owner alone.
#pragma once

#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"

namespace tandem {

class Thread {
 public:
  Thread() = default;
  // Starts `body`. `name` shows in debuggers, cut to 15 characters.
  Thread(const std::string& name, absl::AnyInvocable<void()> body);
  ~Thread() { Join(); }
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept;

  void Join();
  bool joinable() const { return thread_.joinable(); }

 private:
  std::thread thread_;
};

}  // namespace tandem
