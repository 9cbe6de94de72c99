#include "common/node/prefix_fetch.h"

#include <algorithm>
#include <utility>

#include "common/telemetry/log.h"

namespace tandem::node {

void PrefixFetch::Unpin(const std::vector<BlockId>& blocks) {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block)
    scheduler_.pool().Unref(*block);
}

// As Unpin, for blocks of which the last ones' window slots are pinned, too.
void PrefixFetch::UnpinTail(const std::vector<BlockId>& blocks) {
  kv::BlockPool& pool = scheduler_.pool();
  pool.UnpinMatched(blocks);
  pool.ReleaseSlots(std::ssize(blocks) - pool.FirstWindowed(std::ssize(blocks)));
}

// ---- receiving end

std::optional<LeaseId> PrefixFetch::Begin(RouterKey router, const Holder& holder,
                                          absl::Span<const kv::BlockHash> hashes,
                                          int64_t prompt_blocks, absl::Duration time_allowed,
                                          absl::Time now) {
  kv::BlockPool& pool = scheduler_.pool();
  const auto here = static_cast<size_t>(pool.MatchLength(hashes));
  if (here >= hashes.size() || fetches_.size() >= kFetchesMax) return std::nullopt;
  Fetch fetch;
  fetch.before = pool.MatchBlocks(hashes.subspan(0, here));
  // With these pinned: room for the rest of the prompt, fetched or computed.
  const auto lacking = prompt_blocks - static_cast<int64_t>(here);
  const auto wanted = hashes.subspan(here);
  const int64_t first_windowed = pool.FirstWindowed(std::ssize(wanted));
  if (pool.counts().available() < lacking ||
      !pool.ReserveSlots(std::ssize(wanted) - first_windowed)) {
    Unpin(fetch.before);
    return std::nullopt;
  }
  fetch.hashes.assign(wanted.begin(), wanted.end());
  fetch.blocks = *pool.Allocate(std::ssize(wanted));
  pool.AddSlots(absl::MakeConstSpan(fetch.blocks).subspan(static_cast<size_t>(first_windowed)));
  const LeaseId lease = ledger_.NewLease();
  ledger_.Transfer(
      transfer::OpenLease{.lease = lease,
                          .epoch = Epoch(1),
                          .first_ordinal = 0,
                          .blocks = fetch.blocks,
                          .deadline = now + std::min(time_allowed / 4, kTimeMax),
                          .window_first_ordinal = static_cast<int32_t>(first_windowed)});
  v1::NodeEvent event;
  v1::BlocksWanted& ask = *event.mutable_blocks_wanted();
  ask.set_from_node_id(holder.node_id);
  ask.set_from_incarnation(holder.incarnation);
  ask.set_lease_id(lease.value());
  ask.set_epoch(1);
  ask.set_hashes(kv::PackHashes(fetch.hashes));
  ask.set_fetch(true);
  fetches_.emplace(lease, std::move(fetch));
  ledger_.Send(router, std::move(event));
  return lease;
}

bool PrefixFetch::Handle(const transfer::LeaseInstalled& event) {
  const auto it = fetches_.find(event.lease);
  if (it == fetches_.end() || it->second.closing) return false;
  const Fetch& fetch = it->second;
  // When this node has computed an equal block meanwhile, the received one is freed.
  for (size_t i = 0; i < fetch.blocks.size(); ++i)
    scheduler_.pool().Seal(fetch.blocks[i], fetch.hashes[i]);
  UnpinTail(fetch.blocks);
  Unpin(fetch.before);
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_blocks_fetched(counters.blocks_fetched() +
                              static_cast<int64_t>(fetch.blocks.size()));
  counters.set_kv_bytes_received(counters.kv_bytes_received() + event.bytes_received);
  fetches_.erase(it);
  return true;
}

bool PrefixFetch::Handle(const transfer::LeaseFailed& event) {
  const auto it = fetches_.find(event.lease);
  if (it == fetches_.end() || it->second.closing) return false;
  GiveUp(event.lease, it->second, event.status);
  return true;
}

bool PrefixFetch::OnNoHolder(LeaseId lease) {
  const auto it = fetches_.find(lease);
  if (it == fetches_.end() || it->second.closing) return false;
  GiveUp(lease, it->second, absl::UnavailableError("the node that holds it has left the fleet"));
  return true;
}

void PrefixFetch::GiveUp(LeaseId lease, Fetch& fetch, const absl::Status& why) {
  Log(LogLevel::kInfo, "cannot fetch a prompt's beginning, computing it",
      {{"why", why.ToString()}});
  fetch.closing = true;
  kv::BlockPool& pool = scheduler_.pool();
  for (const BlockId block : fetch.blocks) pool.Quarantine(block);
  pool.ReleaseSlots(std::ssize(fetch.blocks) - pool.FirstWindowed(std::ssize(fetch.blocks)));
  Unpin(std::exchange(fetch.before, {}));
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_fetches_failed(counters.fetches_failed() + 1);
  ledger_.Transfer(transfer::CloseLease{.lease = lease, .reason = "blocks did not arrive"});
}

void PrefixFetch::Handle(const transfer::LeaseDrained& event) {
  const auto it = fetches_.find(event.lease);
  if (it == fetches_.end() || !it->second.closing) return;
  scheduler_.EndQuarantine(it->second.blocks);
  fetches_.erase(it);
}

// ---- sending end

PrefixFetch::Send PrefixFetch::Pin(const v1::SendBlocks& command,
                                   absl::Span<const kv::BlockHash> hashes) {
  kv::BlockPool& pool = scheduler_.pool();
  Send send{.lent = command.lent()};
  if (sends_.size() >= kSendsMax) return send;
  if (send.lent) {
    send.blocks = pool.MatchBlocks(hashes);
    return send;
  }
  send.blocks = pool.Match(hashes);
  const int64_t count = std::ssize(send.blocks);
  if (!pool.ReserveSlots(count - pool.FirstWindowed(count))) {
    pool.UnpinMatched(send.blocks);
    send.blocks.clear();
  }
  return send;
}

void PrefixFetch::Unpin(const Send& send) {
  send.lent ? Unpin(send.blocks) : UnpinTail(send.blocks);
}

void PrefixFetch::OnSendBlocks(const v1::SendBlocks& command, absl::Time now) {
  const auto hashes = kv::UnpackHashes(command.hashes());
  if (!hashes.ok() || hashes->empty()) return;
  Send send = Pin(command, *hashes);
  const bool held = send.blocks.size() == hashes->size();
  const transfer::ExportId export_id = ledger_.NewExport();
  const auto count = static_cast<int32_t>(hashes->size());
  ledger_.Transfer(transfer::OpenExport{
      .export_id = export_id,
      .peer = {.node = NodeId(command.receiver_node_id()),
               .incarnation = Incarnation(command.receiver_incarnation()),
               .transport_address = command.receiver_address(),
               .host = command.receiver_host()},
      .lease = LeaseId(command.lease_id()),
      .epoch = Epoch(command.epoch()),
      // Nothing is read of an export that is cancelled before its first push.
      .blocks = held ? send.blocks : std::vector<BlockId>(hashes->size(), BlockId(0)),
      .deadline = now + kTimeMax,
      .window_first_ordinal =
          send.lent ? count : static_cast<int32_t>(scheduler_.pool().FirstWindowed(count))});
  sends_.emplace(export_id, std::move(send));
  if (!held) {
    // The router's index was out of date, or this node is busy: tell the receiver at once.
    ledger_.Transfer(transfer::CancelExport{.export_id = export_id,
                                            .reason = "the blocks are not held any more"});
    return;
  }
  ledger_.Transfer(transfer::PushRange{.export_id = export_id,
                                       .first_ordinal = 0,
                                       .ordinal_count = count,
                                       .first_layer = 0,
                                       .layer_count = scheduler_.spec().layout.num_layers});
  // These blocks belong to no sequence, so there is no first token.
  ledger_.Transfer(transfer::FinishExport{.export_id = export_id, .first_token = {}, .tokens = {}});
}

void PrefixFetch::EndSend(transfer::ExportId export_id) {
  const auto it = sends_.find(export_id);
  if (it == sends_.end()) return;
  Unpin(it->second);
  sends_.erase(it);
}

void PrefixFetch::Handle(const transfer::ExportDone& event) {
  if (!sends_.contains(event.export_id)) return;
  ledger_.counters().set_kv_bytes_sent(ledger_.counters().kv_bytes_sent() + event.bytes_sent);
  EndSend(event.export_id);
}

void PrefixFetch::Handle(const transfer::ExportFailed& event) { EndSend(event.export_id); }

}  // namespace tandem::node
