// What an event of the simulation does: a callable without arguments. As
// absl::AnyInvocable<void()>, but a callable of up to kInlineBytes lies in the object itself, since
// a simulation makes millions of small ones. Thread safety: none; the simulation's thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

namespace tandem::sim {

class Action {
 public:
  static constexpr size_t kInlineBytes = 48;  // six pointers

  Action() = default;
  template <typename Callable,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<Callable>, Action>>>
  Action(Callable&& callable) {  // NOLINT: implicit, as for AnyInvocable
    using Stored = std::decay_t<Callable>;
    if constexpr (kFits<Stored>) {
      std::construct_at(&As<Stored>(bytes_), std::forward<Callable>(callable));
      kind_ = &kKindOf<Stored>;
    } else {
      Stored* const stored = std::make_unique<Stored>(std::forward<Callable>(callable)).release();
      std::memcpy(bytes_, &stored, sizeof(stored));
      kind_ = &kKindOf<OnHeap<Stored>>;
    }
  }
  Action(Action&& other) noexcept { TakeFrom(other); }
  Action& operator=(Action&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    TakeFrom(other);
    return *this;
  }
  ~Action() { Reset(); }

  explicit operator bool() const { return kind_ != nullptr; }
  // REQUIRES: it holds a callable.
  void operator()() { kind_->run(bytes_); }

 private:
  // Of a type of callable. A null `move` copies the bytes, a null `destroy` does nothing.
  struct Kind {
    void (*run)(std::byte* from);
    void (*move)(std::byte* from, std::byte* to);  // and destroys what it moved from
    void (*destroy)(std::byte* from);
  };
  // What lies in bytes_ for a callable that is too large for them: a pointer to it.
  template <typename Stored>
  struct OnHeap {
    Stored* stored;
    void operator()() { (*stored)(); }
  };

  template <typename Stored>
  static constexpr bool kFits =
      sizeof(Stored) <= kInlineBytes &&
      alignof(Stored) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<Stored>;
  template <typename Stored>
  static Stored& As(std::byte* from) {
    return *reinterpret_cast<Stored*>(from);
  }
  template <typename Stored>
  static void Run(std::byte* from) {
    As<Stored>(from)();
  }
  template <typename Stored>
  static void Move(std::byte* from, std::byte* to) {
    std::construct_at(&As<Stored>(to), std::move(As<Stored>(from)));
    std::destroy_at(&As<Stored>(from));
  }
  template <typename Stored>
  static void Destroy(std::byte* from) {
    std::destroy_at(&As<Stored>(from));
  }
  template <typename Stored>
  static void DestroyOnHeap(std::byte* from) {
    std::unique_ptr<Stored>(As<OnHeap<Stored>>(from).stored);
  }
  template <typename Stored>
  static constexpr Kind MakeKind(const Stored*) {
    constexpr bool plain = std::is_trivially_copyable_v<Stored>;
    return {&Run<Stored>, plain ? nullptr : &Move<Stored>, plain ? nullptr : &Destroy<Stored>};
  }
  template <typename Stored>
  static constexpr Kind MakeKind(const OnHeap<Stored>*) {
    return {&Run<OnHeap<Stored>>, nullptr, &DestroyOnHeap<Stored>};
  }
  template <typename Stored>
  static constexpr Kind kKindOf = MakeKind(static_cast<const Stored*>(nullptr));

  void TakeFrom(Action& other) {
    kind_ = std::exchange(other.kind_, nullptr);
    if (kind_ == nullptr) return;
    if (kind_->move == nullptr)
      std::memcpy(bytes_, other.bytes_, kInlineBytes);
    else
      kind_->move(other.bytes_, bytes_);
  }
  void Reset() {
    const Kind* const kind = std::exchange(kind_, nullptr);
    if (kind != nullptr && kind->destroy != nullptr) kind->destroy(bytes_);
  }

  alignas(std::max_align_t) std::byte bytes_[kInlineBytes];
  const Kind* kind_ = nullptr;
};

}  // namespace tandem::sim
