#include "common/node/prefix_fetch.h"

#include <algorithm>
#include <utility>

#include "common/cost/loan_time.h"
#include "common/node/receiver_of.h"
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
                                          const Beginning& beginning, absl::Duration time_allowed,
                                          absl::Time now) {
  kv::BlockPool& pool = scheduler_.pool();
  const absl::Span<const kv::BlockHash> hashes = beginning.hashes;
  const auto here = static_cast<size_t>(pool.MatchLength(hashes));
  if (here >= hashes.size() || fetches_.size() >= kFetchesMax) return std::nullopt;
  Fetch fetch;
  fetch.before = pool.MatchBlocks(hashes.subspan(0, here));
  // With these pinned: room for the rest of the prompt, fetched or computed.
  const auto wanted = hashes.subspan(here);
  const absl::Span<const TokenId> after =
      FetchesParts() ? beginning.tokens_after : absl::Span<const TokenId>();
  const int64_t part = after.empty() ? 0 : 1;
  const int64_t count = std::ssize(wanted) + part;
  const int64_t lacking = std::max(count, beginning.prompt_blocks - static_cast<int64_t>(here));
  const int64_t first_windowed = pool.FirstWindowed(std::ssize(wanted));
  if (pool.counts().available() < lacking || !pool.ReserveSlots(count - first_windowed)) {
    Unpin(fetch.before);
    return std::nullopt;
  }
  std::vector<BlockId> blocks = *pool.Allocate(count);
  pool.AddSlots(absl::MakeConstSpan(blocks).subspan(static_cast<size_t>(first_windowed)));
  const LeaseId lease = ledger_.NewLease();
  ledger_.Transfer(
      transfer::OpenLease{.lease = lease,
                          .epoch = Epoch(1),
                          .first_ordinal = 0,
                          .blocks = blocks,
                          .deadline = now + std::min(time_allowed / 4, kTimeMax),
                          .window_first_ordinal = static_cast<int32_t>(first_windowed)});
  fetch.hashes.assign(wanted.begin(), wanted.end());
  fetch.parent = kv::ParentOf(hashes, here);
  fetch.tokens_after.assign(after.begin(), after.end());
  if (part != 0) {
    fetch.part = blocks.back();
    blocks.pop_back();
  }
  fetch.blocks = std::move(blocks);
  v1::NodeEvent event;
  v1::BlocksWanted& ask = *event.mutable_blocks_wanted();
  ask.set_from_node_id(holder.node_id);
  ask.set_from_incarnation(holder.incarnation);
  ask.set_lease_id(lease.value());
  ask.set_epoch(1);
  ask.set_hashes(kv::PackHashes(fetch.hashes));
  ask.set_fetch(true);
  ask.mutable_tokens_after()->Add(fetch.tokens_after.begin(), fetch.tokens_after.end());
  fetches_.emplace(lease, std::move(fetch));
  ledger_.Send(router, std::move(event));
  return lease;
}

bool PrefixFetch::Handle(const transfer::LeaseInstalled& event) {
  const auto it = fetches_.find(event.lease);
  if (it == fetches_.end() || it->second.closing) return false;
  const Fetch& fetch = it->second;
  const int64_t sent = event.tokens.cached();
  const bool sensible = sent >= 0 && sent <= std::ssize(fetch.tokens_after);
  const int64_t part_rows = sensible ? sent : 0;
  Install(fetch, part_rows);
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_blocks_fetched(counters.blocks_fetched() +
                              static_cast<int64_t>(fetch.blocks.size()));
  counters.set_part_tokens_fetched(counters.part_tokens_fetched() + part_rows);
  counters.set_kv_bytes_received(counters.kv_bytes_received() + event.bytes_received);
  fetches_.erase(it);
  return true;
}

void PrefixFetch::Install(const Fetch& fetch, int64_t part_rows) {
  kv::BlockPool& pool = scheduler_.pool();
  // When this node has computed an equal block meanwhile, the received one is freed.
  for (size_t i = 0; i < fetch.blocks.size(); ++i) {
    pool.SetOrigin(fetch.blocks[i], kv::BlockOrigin::kPeer);
    pool.Seal(fetch.blocks[i], fetch.hashes[i], i == 0 ? fetch.parent : fetch.hashes[i - 1]);
  }
  if (part_rows > 0) {
    const auto tokens = absl::MakeConstSpan(fetch.tokens_after);
    pool.NamePart(*fetch.part, fetch.hashes.back(),
                  tokens.subspan(0, static_cast<size_t>(part_rows)));
  }
  if (fetch.part.has_value()) pool.UnpinPart(*fetch.part);
  UnpinTail(fetch.blocks);
  Unpin(fetch.before);
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
  const int64_t windowed = std::ssize(fetch.blocks) - pool.FirstWindowed(std::ssize(fetch.blocks));
  pool.ReleaseSlots(windowed + (fetch.part.has_value() ? 1 : 0));
  if (fetch.part.has_value()) fetch.blocks.push_back(*std::exchange(fetch.part, std::nullopt));
  for (const BlockId block : fetch.blocks) pool.Quarantine(block);
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
  if (send.blocks.size() == hashes.size()) send.part = PinPart(command, hashes.back());
  return send;
}

std::optional<kv::PartIndex::Found> PrefixFetch::PinPart(const v1::SendBlocks& command,
                                                         const kv::BlockHash& parent) {
  kv::BlockPool& pool = scheduler_.pool();
  const std::vector<TokenId> tokens(command.tokens_after().begin(), command.tokens_after().end());
  const auto part = pool.PinPart(parent, tokens);
  if (!part.has_value() || !pool.IsShared(part->block)) return part;
  // A sequence may be writing the rows after it, and a block must not change while it is sent.
  pool.UnpinPart(part->block);
  return std::nullopt;
}

void PrefixFetch::Unpin(const Send& send) {
  if (send.part.has_value()) scheduler_.pool().UnpinPart(send.part->block);
  send.lent ? Unpin(send.blocks) : UnpinTail(send.blocks);
}

bool PrefixFetch::AreTokensAfter(const v1::SendBlocks& command) const {
  const engine::EngineSpec& spec = scheduler_.spec();
  const auto& tokens = command.tokens_after();
  if (tokens.empty()) return true;
  return FetchesParts() && !command.lent() && tokens.size() < spec.layout.block_tokens &&
         std::all_of(tokens.begin(), tokens.end(),
                     [&](int32_t token) { return token >= 0 && token < spec.vocab_size; });
}

void PrefixFetch::OnSendBlocks(const v1::SendBlocks& command, absl::Time now) {
  const auto hashes = kv::UnpackHashes(command.hashes());
  if (!hashes.ok() || hashes->empty()) return;
  Send send = AreTokensAfter(command) ? Pin(command, *hashes) : Send{.lent = command.lent()};
  const bool held = send.blocks.size() == hashes->size();
  const transfer::ExportId export_id = ledger_.NewExport();
  const auto whole = static_cast<int32_t>(hashes->size());
  const int32_t count = whole + (command.tokens_after().empty() ? 0 : 1);
  // Nothing is read of an export that is cancelled before its first push.
  std::vector<BlockId> blocks(static_cast<size_t>(count), BlockId(0));
  const int64_t bytes = count * scheduler_.spec().layout.block_bytes();
  v1::TokensBySource part_rows;
  if (held) {
    std::copy(send.blocks.begin(), send.blocks.end(), blocks.begin());
    if (count > whole) blocks.back() = send.part.has_value() ? send.part->block : blocks[whole - 1];
    part_rows.set_cached(send.part.has_value() ? send.part->rows : 0);
  }
  ledger_.Transfer(transfer::OpenExport{
      .export_id = export_id,
      .peer = ReceiverOf(command),
      .lease = LeaseId(command.lease_id()),
      .epoch = Epoch(command.epoch()),
      .blocks = std::move(blocks),
      .deadline = now + kTimeMax + (send.lent ? cost::LoanBytesTime(bytes) : absl::ZeroDuration()),
      .window_first_ordinal =
          send.lent ? whole : static_cast<int32_t>(scheduler_.pool().FirstWindowed(whole))});
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
  ledger_.Transfer(
      transfer::FinishExport{.export_id = export_id, .first_token = {}, .tokens = part_rows});
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
