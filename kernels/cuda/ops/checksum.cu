// XXH3-64 of ranges in device memory (kernels/api/device_checksum.h): the host library's value, to
// the bit, without the bytes passing through the host.
//
// XXH3 keeps eight sums of 64 bits. Blocks of 1024 bytes are sixteen stripes of eight words; a word
// w at place i of stripe s adds w to sum i ^ 1 and low(w ^ secret) · high(w ^ secret) to sum i,
// with word s + i of the secret; after each block every sum is scrambled. What a block adds does
// not depend on the sums before it. So threads compute many blocks' amounts in parallel, and only
// the scrambling, a few instructions per block, runs in order. Grid: a thread block for each range.
// Eight threads take a block of 1024 bytes, a word of each stripe; 32 of those in a round. They ask
// for a round's words one round ahead, while a warp of its own goes through the sums of the round
// before. Shared memory: the secret, then two halves of [32][8] sums, used alternately. Bound: the
// scrambling, about 30 cycles for each 1024 bytes.
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
  static constexpr int kAdders = 256;                   // threads that add up blocks of 1024 bytes
  static constexpr int kThreads = kAdders + kWarpSize;  // the first warp scrambles
  static constexpr int kBlocksPerMultiprocessor = 3;
  static constexpr int kStripeBytes = 64;
  static constexpr int kStripes = 16;  // of a block
  static constexpr int kBlockBytes = kStripes * kStripeBytes;
  static constexpr int kTogether = kAdders / kLanes;  // blocks of a round
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

  // kAligned: at a multiple of 8.
  template <bool kAligned>
  TANDEM_KERNEL uint64_t Read64(const char* at) {
    if constexpr (kAligned) {
      return *reinterpret_cast<const uint64_t*>(at);
    } else {
      uint64_t word = 0;
      for (int i = 0; i < 8; ++i) word |= uint64_t{static_cast<uint8_t>(at[i])} << 8 * i;
      return word;
    }
  }

  TANDEM_KERNEL uint64_t* Secret() { return reinterpret_cast<uint64_t*>(SharedMemory()); }
  // The secret's word at a byte offset that need not be a multiple of 8.
  TANDEM_KERNEL uint64_t SecretAt(int byte) {
    const uint64_t* word = Secret() + byte / 8;
    return word[0] >> byte % 8 * 8 | word[1] << (64 - byte % 8 * 8);
  }

  // A lane's words of a block, or of the rest behind the last whole one.
  struct Words {
    uint64_t of[kStripes];
  };
  template <bool kAligned>
  TANDEM_KERNEL Words ReadBlock(const char* block, int lane) {
    Words words;
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
      words.of[s] = Read64<kAligned>(block + s * kStripeBytes + lane * 8);
    }
    return words;
  }
  TANDEM_KERNEL Added AddBlock(const Words& words, int lane) {
    Added added;
#pragma unroll
    for (int s = 0; s < kStripes; ++s) added.Add(words.of[s], Secret()[s + lane]);
    return added;
  }

  // Adds the rest behind the last whole block: at most 1024 bytes, of which the last 64 are a
  // stripe of their own that may overlap the one before.
  template <bool kAligned>
  TANDEM_KERNEL Added AddRest(const char* rest, const char* end, int lane) {
    Added added;
    const int stripes = static_cast<int>(end - rest - 1) / kStripeBytes;
    Words words;
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
      words.of[s] = s < stripes ? Read64<kAligned>(rest + s * kStripeBytes + lane * 8) : 0;
    }
    // The last stripe lies anywhere.
    const char* last = end - kStripeBytes + lane * 8;
    const uint64_t last_word =
        reinterpret_cast<uintptr_t>(last) % 8 == 0 ? Read64<true>(last) : Read64<false>(last);
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
      if (s < stripes) added.Add(words.of[s], Secret()[s + lane]);
    }
    added.Add(last_word, SecretAt(kLastStripeSecret + lane * 8));
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

  // A range of `blocks` whole blocks and a rest.
  struct Range {
    const char* data;
    int64_t bytes, blocks;
  };
  TANDEM_KERNEL uint64_t* SumsOf(int64_t round) {
    return Secret() + kSecretWords + (round % 2 != 0 ? kTogether * kLanes : 0);
  }

  // The threads behind the first warp: a round's amounts, then the next one's, while the first warp
  // scrambles with those before.
  template <bool kAligned>
  TANDEM_KERNEL void AddRounds(const Range& range) {
    const int thread = ThreadIndex() - kWarpSize, lane = thread % kLanes;
    int64_t block = thread / kLanes;
    Words words = {};
    if (block < range.blocks) words = ReadBlock<kAligned>(range.data + block * kBlockBytes, lane);
    for (int64_t round = 0; round * kTogether < range.blocks; ++round) {
      const Added added = AddBlock(words, lane);
      block += kTogether;
      if (block < range.blocks) words = ReadBlock<kAligned>(range.data + block * kBlockBytes, lane);
      SumsOf(round)[thread] = added.Sum();
      SyncThreads();
    }
  }

  // The first warp, each eight of whose lanes compute the same.
  template <bool kAligned>
  TANDEM_KERNEL uint64_t Scramble(const Params& p, const Range& range) {
    const int lane = ThreadIndex() % kLanes;
    const uint64_t secret = Secret()[kStripes + lane];
    uint64_t sum = p.initial[lane];
    for (int64_t round = 0; round * kTogether < range.blocks; ++round) {
      SyncThreads();
      const uint64_t* sums = SumsOf(round) + lane;
      const int64_t left = range.blocks - round * kTogether;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const uint64_t scrambled = sum + sums[i * kLanes];
        if (i < left) sum = (scrambled ^ scrambled >> 47 ^ secret) * kScramblePrime;
      }
    }
    const char* rest = range.data + range.blocks * kBlockBytes;
    sum += AddRest<kAligned>(rest, range.data + range.bytes, lane).Sum();
    return Finish(sum, range.bytes, lane);
  }

  template <bool kAligned>
  TANDEM_KERNEL void RunRange(const Params& p, const Range& range) {
    if (WarpIndex() != 0) return AddRounds<kAligned>(range);
    const uint64_t checksum = Scramble<kAligned>(p, range);
    if (ThreadIndex() == 0) p.args.checksums[BlockX()] = checksum;
  }

  TANDEM_KERNEL void Run(const Params& p) {
    if (ThreadIndex() < kSecretWords) Secret()[ThreadIndex()] = p.secret[ThreadIndex()];
    SyncThreads();
    const Range range = {p.args.base + BlockX() * p.args.stride_bytes, p.args.bytes,
                         (p.args.bytes - 1) / kBlockBytes};
    if (reinterpret_cast<uintptr_t>(range.data) % 8 == 0) {
      RunRange<true>(p, range);
    } else {
      RunRange<false>(p, range);
    }
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
