// XXH3-64 of ranges in device memory (kernels/api/device_checksum.h): the host library's value, to
// the bit, without the bytes passing through the host.
//
// XXH3 keeps eight sums of 64 bits. Blocks of 1024 bytes are sixteen stripes of eight words; a word
// w at place i of stripe s adds w to sum i ^ 1 and low(w ^ secret) · high(w ^ secret) to sum i,
// with word s + i of the secret; after each block every sum is scrambled. What a block adds does
// not depend on the sums before it. So threads compute many blocks' amounts in parallel, and only
// the scrambling, a few instructions per block, runs in order. Grid: a thread block for each range.
// Eight threads take a block of 1024 bytes, a word of each stripe; 32 of those at a time, while one
// warp goes through the sums of the 32 before. Shared memory: the secret, then two halves of
// [32][8] sums, used alternately. Bound: bytes of the range.
#include "kernels/api/device_checksum.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kLanes = 8;
constexpr int kSecretWords = 24;
constexpr uint64_t kPrime1 = 0x9e3779b185ebca87u;
constexpr uint64_t kPrime3 = 0x165667919e3779f9u;
constexpr uint64_t kScramblePrime = 0x9e3779b1u;

struct ChecksumParams {
  DeviceChecksumArgs args;
  uint64_t initial[kLanes];
  uint64_t secret[kSecretWords];  // little-endian words of the library's default secret
};

constexpr ChecksumParams kXxh3 = {
    {},
    {0xc2b2ae3du, 0x9e3779b185ebca87u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u,
     0x85ebca77c2b2ae63u, 0x85ebca77u, 0x27d4eb2f165667c5u, 0x9e3779b1u},
    {
        0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
        0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
        0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
        0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
        0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
        0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
    }};

struct ChecksumKernel {
  using Params = ChecksumParams;
  static constexpr const char* kName = "checksum kernel";
  static constexpr int kThreads = 256;
  static constexpr int kBlocksPerMultiprocessor = 4;
  static constexpr int kStripeBytes = 64;
  static constexpr int kStripes = 16;  // of a block
  static constexpr int kBlockBytes = kStripes * kStripeBytes;
  static constexpr int kTogether = kThreads / kLanes;
  static constexpr int kSharedBytes = (kSecretWords + 2 * kTogether * kLanes) * 8;
  // Offsets in the secret of the last stripe's words and of the final ones.
  static constexpr int kLastStripeSecret = 121;
  static constexpr int kFinalSecret = 11;

  // The amounts that some stripes add to a lane's sum and to its neighbour's.
  struct Added {
    uint64_t products = 0, words = 0;

    TANDEM_DEVICE void Add(uint64_t word, uint64_t secret) {
      const uint64_t key = word ^ secret;
      products += (key & 0xffffffffu) * (key >> 32);
      words += word;
    }
    // Both amounts for this lane. Every lane of the warp must call this.
    TANDEM_DEVICE uint64_t Sum() const { return products + ShuffleXor(words, 1); }
  };

  TANDEM_KERNEL uint64_t Read64(const char* at) {
    if (reinterpret_cast<uintptr_t>(at) % 8 == 0) return *reinterpret_cast<const uint64_t*>(at);
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word |= uint64_t{static_cast<uint8_t>(at[i])} << 8 * i;
    return word;
  }

  TANDEM_KERNEL uint64_t* Secret() { return reinterpret_cast<uint64_t*>(SharedMemory()); }
  // The secret's word at a byte offset that need not be a multiple of 8.
  TANDEM_KERNEL uint64_t SecretAt(int byte) {
    const uint64_t* word = Secret() + byte / 8;
    return word[0] >> byte % 8 * 8 | word[1] << (64 - byte % 8 * 8);
  }

  TANDEM_KERNEL Added AddBlock(const char* block, int lane) {
    Added added;
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
      added.Add(Read64(block + s * kStripeBytes + lane * 8), Secret()[s + lane]);
    }
    return added;
  }

  // Adds the rest behind the last whole block: at most 1024 bytes, of which the last 64 are a
  // stripe of their own that may overlap the one before.
  TANDEM_KERNEL Added AddRest(const char* rest, const char* end, int lane) {
    Added added;
    const int stripes = static_cast<int>(end - rest - 1) / kStripeBytes;
    for (int s = 0; s < stripes; ++s) {
      added.Add(Read64(rest + s * kStripeBytes + lane * 8), Secret()[s + lane]);
    }
    added.Add(Read64(end - kStripeBytes + lane * 8), SecretAt(kLastStripeSecret + lane * 8));
    return added;
  }

  // The xor of the two halves of the 128-bit product.
  TANDEM_KERNEL uint64_t FoldedProduct(uint64_t a, uint64_t b) {
    const uint64_t a_low = a & 0xffffffffu, a_high = a >> 32;
    const uint64_t b_low = b & 0xffffffffu, b_high = b >> 32;
    const uint64_t low = a_low * b_low, cross = a_high * b_low;
    const uint64_t middle = (low >> 32) + (cross & 0xffffffffu) + a_low * b_high;
    const uint64_t high = a_high * b_high + (cross >> 32) + (middle >> 32);
    return high ^ (middle << 32 | (low & 0xffffffffu));
  }

  // The checksum, from the eight lanes' sums.
  TANDEM_KERNEL uint64_t Finish(uint64_t sum, int64_t bytes, int lane) {
    const uint64_t mine = sum ^ SecretAt(kFinalSecret + lane * 8);
    uint64_t folded = FoldedProduct(mine, ShuffleXor(mine, 1));
    folded += ShuffleXor(folded, 2);
    folded += ShuffleXor(folded, 4);
    uint64_t hash = static_cast<uint64_t>(bytes) * kPrime1 + folded;
    hash = (hash ^ hash >> 37) * kPrime3;
    return hash ^ hash >> 32;
  }

  TANDEM_KERNEL void Run(const Params& p) {
    if (ThreadIndex() < kSecretWords) Secret()[ThreadIndex()] = p.secret[ThreadIndex()];
    SyncThreads();
    const char* data = p.args.base + BlockX() * p.args.stride_bytes;
    const int lane = ThreadIndex() % kLanes;
    const int64_t blocks = (p.args.bytes - 1) / kBlockBytes;
    uint64_t* sums = Secret() + kSecretWords;
    uint64_t sum = p.initial[lane];
    for (int64_t first = 0; first < blocks; first += kTogether) {
      const int64_t block = first + ThreadIndex() / kLanes;
      Added added;
      if (block < blocks) added = AddBlock(data + block * kBlockBytes, lane);
      sums[ThreadIndex()] = added.Sum();
      SyncThreads();
      // Meanwhile the other warps compute the next 32 blocks, into the other half.
      if (WarpIndex() == 0) {
        for (int i = 0; i < kTogether && first + i < blocks; ++i) {
          sum += sums[i * kLanes + lane];
          sum = (sum ^ sum >> 47 ^ Secret()[kStripes + lane]) * kScramblePrime;
        }
      }
      sums = Secret() + kSecretWords + (first / kTogether % 2 == 0 ? kTogether * kLanes : 0);
    }
    if (WarpIndex() != 0) return;
    sum += AddRest(data + blocks * kBlockBytes, data + p.args.bytes, lane).Sum();
    const uint64_t checksum = Finish(sum, p.args.bytes, lane);
    if (ThreadIndex() == 0) p.args.checksums[BlockX()] = checksum;
  }
};

}  // namespace

void Checksum(const DeviceChecksumArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.bytes >= kChecksumBytesMin);
  ChecksumParams params = kXxh3;
  params.args = args;
  Launch<ChecksumKernel>({.x = args.count,
                          .threads = ChecksumKernel::kThreads,
                          .shared_bytes = ChecksumKernel::kSharedBytes},
                         params, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
