// One node's KV plane as a process of its own, driven line by line over stdin and stdout, so that a
// test can kill or stop it.
// TRANSPORTS is UCX's choice (auto, shm or tcp), also with +encrypted or +unsealed; or mapped:
// arenas are mapped, on top of auto. Connections are sealed, except with +unsealed.
//   transfer_peer TRANSPORTS NUM_LAYERS LAYER_BLOCK_BYTES NUM_BLOCKS INCARNATION
// Prints "address HEX" first. Commands:
//   fill FIRST_BLOCK COUNT SEED          writes a pattern that depends on (layer, ordinal, seed)
//   check FIRST_BLOCK COUNT SEED         → "check equal" or "check differs LAYER ORDINAL"
//   lease ID EPOCH FIRST_BLOCK COUNT DEADLINE_MS
//   raise ID EPOCH DEADLINE_MS
//   close ID
//   export ID ADDRESS_HEX INCARNATION LEASE EPOCH FIRST_BLOCK COUNT DEADLINE_MS
//   counters                             → "counters BYTES_RECEIVED LEASES EXPORTS RECEIVES"
// Events are printed as they come: installed, failed, drained, done, exportfailed.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/kv/block_arena.h"
#include "common/runtime/clock.h"
#include "common/transfer/mapped_transport.h"
#include "common/transfer/sealed_transport.h"
#include "common/transfer/transfer_service.h"
#include "common/transfer/ucx_transport.h"

namespace tandem::transfer {
namespace {

constexpr char kFleetSecret[] = "test fleet";

absl::Mutex print_mutex(absl::kConstInit);

void Print(const std::string& line) {
  absl::MutexLock lock(&print_mutex);
  std::cout << line << std::endl;
}

void PrintEvent(const TransferEvent& event) {
  std::ostringstream out;
  if (const auto* installed = std::get_if<LeaseInstalled>(&event)) {
    out << "installed " << installed->lease << " " << installed->epoch << " "
        << installed->bytes_received << " " << installed->first_token.token_id() << " "
        << installed->transport << " " << absl::ToInt64Microseconds(installed->transfer_time) << " "
        << absl::ToInt64Microseconds(installed->receive_time);
  } else if (const auto* failed = std::get_if<LeaseFailed>(&event)) {
    out << "failed " << failed->lease << " " << failed->epoch << " " << failed->status.ToString();
  } else if (const auto* drained = std::get_if<LeaseDrained>(&event)) {
    out << "drained " << drained->lease;
  } else if (const auto* done = std::get_if<ExportDone>(&event)) {
    out << "done " << done->export_id << " " << done->bytes_sent << " "
        << absl::ToInt64Microseconds(done->transfer_time);
  } else if (const auto* lost = std::get_if<ExportFailed>(&event)) {
    out << "exportfailed " << lost->export_id << " " << lost->status.ToString();
  }
  Print(out.str());
}

uint64_t Word(int layer, int ordinal, uint64_t seed, size_t i) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u + (uint64_t(layer) << 40) + (uint64_t(ordinal) << 16) + i;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 27);
}

class Peer {
 public:
  Peer(kv::BlockArena& arena, TransferService& service) : arena_(arena), service_(service) {}

  void Run(const std::string& line) {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    if (verb == "fill" || verb == "check") {
      int first = 0, count = 0;
      uint64_t seed = 0;
      in >> first >> count >> seed;
      Pattern(first, count, seed, verb == "check");
    } else if (verb == "lease") {
      uint64_t id = 0;
      uint32_t epoch = 0;
      int first = 0, count = 0, deadline_ms = 0;
      in >> id >> epoch >> first >> count >> deadline_ms;
      Submit(OpenLease{LeaseId(id), Epoch(epoch), 0, Blocks(first, count), In(deadline_ms)});
    } else if (verb == "raise") {
      uint64_t id = 0;
      uint32_t epoch = 0;
      int deadline_ms = 0;
      in >> id >> epoch >> deadline_ms;
      Submit(RaiseEpoch{LeaseId(id), Epoch(epoch), In(deadline_ms)});
    } else if (verb == "close") {
      uint64_t id = 0;
      in >> id;
      Submit(CloseLease{LeaseId(id), "closed by the test"});
    } else if (verb == "export") {
      Export(in);
    } else if (verb == "counters") {
      const TransferCounters counters = service_.counters();
      std::ostringstream out;
      out << "counters " << counters.bytes_received << " " << counters.leases_open << " "
          << counters.exports_open << " " << counters.receives_in_flight;
      Print(out.str());
    }
  }

 private:
  void Submit(TransferCommand command) {
    if (!service_.Submit(std::move(command)).ok()) std::abort();
  }
  static absl::Time In(int ms) { return RealClock().Now() + absl::Milliseconds(ms); }
  static std::vector<BlockId> Blocks(int first, int count) {
    std::vector<BlockId> blocks;
    for (int i = 0; i < count; ++i) blocks.push_back(BlockId(first + i));
    return blocks;
  }

  void Export(std::istringstream& in) {
    uint64_t id = 0, incarnation = 0, lease = 0;
    uint32_t epoch = 0;
    int first = 0, count = 0, deadline_ms = 0;
    std::string address;
    in >> id >> address >> incarnation >> lease >> epoch >> first >> count >> deadline_ms;
    Submit(OpenExport{ExportId(id),
                      PeerAddress{NodeId("peer"), Incarnation(incarnation),
                                  absl::HexStringToBytes(address), "host"},
                      LeaseId(lease), Epoch(epoch), 0, Blocks(first, count), In(deadline_ms)});
    // As a prefill node does: a chunk of the prompt at a time, layer by layer.
    constexpr int kChunkBlocks = 8;
    for (int chunk = 0; chunk < count; chunk += kChunkBlocks) {
      const int blocks = std::min(kChunkBlocks, count - chunk);
      for (int layer = 0; layer < arena_.layout().num_layers; ++layer) {
        Submit(PushRange{ExportId(id), chunk, blocks, layer, 1});
      }
    }
    v1::GeneratedToken token;
    token.set_token_id(static_cast<int>(id) + 1000);
    Submit(FinishExport{ExportId(id), token});
  }

  void Pattern(int first, int count, uint64_t seed, bool check) {
    for (int layer = 0; layer < arena_.layout().num_layers; ++layer) {
      for (int i = 0; i < count; ++i) {
        const absl::Span<std::byte> block = arena_.Block(layer, BlockId(first + i));
        uint64_t* words = reinterpret_cast<uint64_t*>(block.data());
        for (size_t w = 0; w < block.size() / sizeof(uint64_t); ++w) {
          if (!check) {
            words[w] = Word(layer, i, seed, w);
          } else if (words[w] != Word(layer, i, seed, w)) {
            std::ostringstream out;
            out << "check differs " << layer << " " << i;
            Print(out.str());
            return;
          }
        }
      }
    }
    Print(check ? "check equal" : "filled");
  }

  kv::BlockArena& arena_;
  TransferService& service_;
};

absl::StatusOr<std::unique_ptr<KvTransport>> Open(absl::string_view transports,
                                                  const kv::BlockArena& arena) {
  const bool encrypts = absl::ConsumeSuffix(&transports, "+encrypted");
  const bool sealed = !absl::ConsumeSuffix(&transports, "+unsealed");
  const bool mapped = transports == "mapped";
  auto transport = NewUcxTransport({.transports = mapped ? "auto" : std::string(transports),
                                    .host = "host",
                                    .fleet_secret = kFleetSecret});
  if (!transport.ok() || !sealed) return transport;
  transport = NewSealedTransport({.fleet_secret = kFleetSecret, .encrypts = encrypts},
                                 *std::move(transport));
  if (!mapped) return transport;
  return NewMappedTransport({.fleet_secret = kFleetSecret}, arena, *std::move(transport));
}

int Main(char** argv) {
  auto arena = kv::BlockArena::Create({.num_layers = std::atoi(argv[2]),
                                       .block_tokens = 16,
                                       .layer_block_bytes = std::atoll(argv[3])},
                                      std::atoll(argv[4]), kv::ArenaMemory::kShareable);
  if (!arena.ok()) {
    std::cerr << arena.status() << std::endl;
    return 1;
  }
  auto transport = Open(argv[1], **arena);
  if (!transport.ok()) {
    std::cerr << transport.status() << std::endl;
    return 1;
  }
  TransferServiceOptions options;
  options.kv_transfer.incarnation = Incarnation(std::strtoull(argv[5], nullptr, 10));
  options.kv_transfer.fleet_secret = kFleetSecret;
  auto service = TransferService::Create(options, std::move(*transport), **arena, &PrintEvent);
  if (!service.ok()) return 1;
  Print("address " + absl::BytesToHexString((*service)->address()));
  Peer peer(**arena, **service);
  for (std::string line; std::getline(std::cin, line);) peer.Run(line);
  return 0;
}

}  // namespace
}  // namespace tandem::transfer

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  return tandem::transfer::Main(argv);
}
