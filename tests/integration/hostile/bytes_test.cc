// Goal: connections that do not speak the protocol of the port they came to - garbage, fragments,
// half a greeting, silence, whole floods of them - disturb no request, cost a bounded number of
// descriptors for a bounded time, and no process.
#include <signal.h>

#include <random>

#include "tests/integration/hostile/hostile_cluster.h"

namespace tandem::testing {
namespace {

constexpr absl::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string RandomBytes(std::mt19937_64& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// An HTTP/2 frame of `type` that says it has `said` bytes.
std::string Http2Frame(std::mt19937_64& random, uint8_t type, uint32_t said, size_t has) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(said >> shift));
  frame.push_back(static_cast<char>(type));
  return frame + RandomBytes(random, 5 + has);
}

// What UCX begins with on a TCP socket, and then active messages of any kind and length.
std::string UcxBytes(std::mt19937_64& random) {
  std::string bytes = "\x78\x56\x34\x12\xBE\xBA\xFE\xCA";
  for (int i = 0; i < 20; ++i) {
    bytes.push_back(static_cast<char>(random() % 36));
    const uint32_t said = random() % 4 == 0 ? static_cast<uint32_t>(random()) : random() % 64;
    bytes.append(reinterpret_cast<const char*>(&said), sizeof said);
    bytes += RandomBytes(random, random() % 64);
  }
  return bytes;
}

std::string Garbage(std::mt19937_64& random) {
  switch (random() % 6) {
    case 0:
      return RandomBytes(random, 1 + random() % 20000);
    case 1:
      return std::string(kHttp2Preface.substr(0, 1 + random() % kHttp2Preface.size()));
    case 2:
      return absl::StrCat(kHttp2Preface, RandomBytes(random, random() % 1000));
    case 3: {
      std::string bytes(kHttp2Preface);
      bytes += std::string("\0\0\0\4\0\0\0\0\0", 9);  // empty settings: the handshake is over
      for (int i = 0; i < 30; ++i) {
        const uint32_t said = random() % 3 == 0 ? random() % (1 << 24) : random() % 40;
        bytes += Http2Frame(random, static_cast<uint8_t>(random() % 12), said, random() % 40);
      }
      return bytes;
    }
    case 4:
      return UcxBytes(random);
    default:
      return RandomBytes(random, 48) + UcxBytes(random);  // as long as a proof is
  }
}

class HostileBytes : public HostileCluster {
 protected:
  void SetUp() override {
    HostileCluster::SetUp();
    const uint64_t seed = std::random_device()();
    std::printf("attacker's seed %lu\n", static_cast<unsigned long>(seed));
    random_.seed(seed);
  }
  std::mt19937_64 random_;
};

TEST_F(HostileBytes, GarbageToEveryPort) {
  for (int round = 0; round < 40; ++round) {
    for (const auto& [name, process] : processes_) {
      for (const Port& port : process.ports) {
        Wire wire(port);
        ASSERT_TRUE(wire.connected()) << name << " port " << port.port;
        wire.Write(Garbage(random_));
        if (random_() % 3 == 0) wire.CloseWriting();
        if (random_() % 3 == 0) wire.ResetAtEnd();
        if (random_() % 4 == 0) wire.Write(Garbage(random_));
      }
    }
  }
  load_.AwaitAnswers(20);
  AwaitFilesAsBefore(absl::Seconds(30));
  for (const char* node : {"prefill-0", "decode-0", "decode-1"}) {
    AwaitCounter(node, 1, [](const v1::NodeCounters& c) { return c.kv_connections_refused(); });
  }
}

TEST_F(HostileBytes, SilentConnectionsAreNotHeldForLong) {
  std::vector<Wire> wires;
  for (int i = 0; i < 60; ++i) {
    for (const auto& [name, process] : processes_) {
      for (const Port& port : process.ports) {
        Wire& wire = wires.emplace_back(port);
        if (i % 3 == 1) wire.Write(kHttp2Preface.substr(0, 1));
        if (i % 3 == 2) wire.CloseWriting();
      }
    }
  }
  load_.AwaitAnswers(20);
  // Though their owner still has them.
  AwaitFilesAsBefore(absl::Seconds(30));
}

}  // namespace
}  // namespace tandem::testing
