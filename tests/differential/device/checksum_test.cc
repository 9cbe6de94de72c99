// Goal: checksums of ranges in device memory are the host library's XXH3-64 to the bit, for lengths
// around every boundary of the algorithm and any alignment, and change with any byte.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "device_fixture.h"
#include "kernels/api/device_checksum.h"

namespace tandem::kernels {
namespace {

class DeviceChecksumTest : public DeviceTest {
 protected:
  std::vector<uint8_t> RandomBytes(size_t size) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator_());
    return bytes;
  }

  // Of `count` ranges that begin at `offset`, `stride` apart.
  std::vector<uint64_t> Checksums(const std::vector<uint8_t>& bytes, size_t offset, size_t stride,
                                  size_t length, size_t count) {
    const DeviceBuffer data = Upload(bytes), out = Poisoned(count * sizeof(uint64_t));
    DeviceChecksumArgs args;
    args.base = data.data() + offset;
    args.stride_bytes = static_cast<int64_t>(stride);
    args.bytes = static_cast<int64_t>(length);
    args.count = static_cast<int32_t>(count);
    args.checksums = out.as<uint64_t>();
    ops().checksum(args, stream());
    return Download<uint64_t>(out, count);
  }

  void ExpectHosts(size_t length) {
    const size_t offset = static_cast<size_t>(Uniform(0, 15)), count = 3;
    const size_t stride = length + static_cast<size_t>(Uniform(0, 40));
    // Exactly as long as the last range: a sanitizer sees reads beyond it.
    const std::vector<uint8_t> bytes = RandomBytes(offset + stride * (count - 1) + length);
    const std::vector<uint64_t> actual = Checksums(bytes, offset, stride, length, count);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(actual[i], XXH3_64bits(bytes.data() + offset + i * stride, length))
          << "range " << i << " of " << length << " bytes at offset " << offset + i * stride;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeviceChecksumTest, kDeviceKinds, DeviceName);

TEST_P(DeviceChecksumTest, EqualsTheHostsToTheBit) {
  // A stripe, a block and the 32 blocks of a round, and what lies beside them.
  for (size_t boundary : {256, 320, 1024, 1088, 2048, 32768, 33792, 65536, 66560}) {
    for (int beside : {-1, 0, 1}) ExpectHosts(boundary + static_cast<size_t>(beside));
  }
  ExpectHosts(static_cast<size_t>(kChecksumBytesMin));
  for (int i = 0; i < 30; ++i) {
    ExpectHosts(static_cast<size_t>(Uniform(static_cast<int32_t>(kChecksumBytesMin), 9000)));
  }
}

TEST_P(DeviceChecksumTest, ChangesWithAnyByte) {
  const size_t length = 3000;
  std::vector<uint8_t> bytes = RandomBytes(length);
  const uint64_t expected = Checksums(bytes, 0, length, length, 1)[0];
  for (int i = 0; i < 20; ++i) {
    const size_t at = static_cast<size_t>(Uniform(0, static_cast<int32_t>(length) - 1));
    const uint8_t bit = static_cast<uint8_t>(1 << Uniform(0, 7));
    bytes[at] ^= bit;
    EXPECT_NE(Checksums(bytes, 0, length, length, 1)[0], expected) << "byte " << at;
    bytes[at] ^= bit;
  }
}

}  // namespace
}  // namespace tandem::kernels
