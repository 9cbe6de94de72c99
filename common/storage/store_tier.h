// The tiers of a node's storage for KV blocks, from the fastest to the slowest, and values that
// each tier has one of.
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstdint>

namespace tandem::storage {

// Host memory (--swap-space) and a file on disk (--kv-disk).
enum class StoreTier : uint8_t { kHost = 0, kDisk = 1 };
inline constexpr std::array kStoreTiers = {StoreTier::kHost, StoreTier::kDisk};

template <typename T>
struct PerTier {
  T host{}, disk{};

  T& operator[](StoreTier tier) { return tier == StoreTier::kHost ? host : disk; }
  const T& operator[](StoreTier tier) const { return tier == StoreTier::kHost ? host : disk; }
};

class TierSet {
 public:
  constexpr TierSet() = default;
  static constexpr TierSet Of(StoreTier tier) { return TierSet(Bit(tier)); }
  static constexpr TierSet All() { return TierSet(3); }

  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool Has(StoreTier tier) const { return (bits_ & Bit(tier)) != 0; }
  constexpr void Add(StoreTier tier) { bits_ |= Bit(tier); }
  constexpr void Remove(StoreTier tier) { bits_ &= static_cast<uint8_t>(~Bit(tier)); }
  constexpr TierSet Without(TierSet other) const {
    return TierSet(bits_ & static_cast<uint8_t>(~other.bits_));
  }
  // Where a block is read from. REQUIRES: !empty().
  constexpr StoreTier fastest() const {
    return Has(StoreTier::kHost) ? StoreTier::kHost : StoreTier::kDisk;
  }
  constexpr bool operator==(const TierSet&) const = default;

 private:
  constexpr explicit TierSet(uint8_t bits) : bits_(bits) {}
  static constexpr uint8_t Bit(StoreTier tier) {
    return static_cast<uint8_t>(1 << static_cast<int>(tier));
  }
  uint8_t bits_ = 0;
};

}  // namespace tandem::storage
