#include "sim/checkers/loan_checker.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/cost/loan_time.h"
#include "common/node/lent_units.h"

namespace tandem::sim {
namespace {

std::string NameOf(const lending::DebtorId& node) {
  return absl::StrCat(node.node.value(), " (incarnation ", node.incarnation.value(), ")");
}

std::string NameOf(const lending::LoanKey& key) {
  return absl::StrCat("loan ", key.loan.value(), " of ", NameOf(key.debtor));
}

std::string NameOf(const engine::UnitSpan& units) {
  return absl::StrCat("units ", units.first, " to ", units.end);
}

lending::DebtorId NodeOf(const lending::CreditorAddress& creditor) {
  return {creditor.node, creditor.incarnation};
}

// Whether the core has issued a command that the plane has yet to get.
template <typename Command, typename Is>
bool IsUntaken(const node::NodeResources& resources, Is is) {
  const auto& commands = resources.ledger().lending_untaken();
  return std::any_of(commands.begin(), commands.end(), [&](const lending::LendingCommand& c) {
    const auto* command = std::get_if<Command>(&c);
    return command != nullptr && is(*command);
  });
}

template <typename Command>
bool IsUntaken(const node::NodeResources& resources, LoanId loan) {
  return IsUntaken<Command>(resources, [&](const Command& c) { return c.loan == loan; });
}

template <typename Command>
bool IsUntaken(const node::NodeResources& resources, const lending::LoanKey& key) {
  return IsUntaken<Command>(resources, [&](const Command& c) { return c.key == key; });
}

bool IsKept(const node::Borrower& borrower, LoanId loan) {
  const auto& kept = borrower.split_loans_kept();
  return std::any_of(kept.begin(), kept.end(), [&](const auto& k) { return k.first == loan; });
}

template <typename Loans>
auto FindUsed(const Loans& used, LoanId loan) {
  return std::find_if(used.begin(), used.end(), [&](const auto& u) { return u.loan == loan; });
}

template <typename Loans>
auto FindServed(const Loans& served, const lending::LoanKey& key) {
  return std::find_if(served.begin(), served.end(), [&](const auto& s) { return s.key == key; });
}

// Whether the sequence has given all of the loan's units to it, or their loans have just ended.
bool IsLent(const node::SequenceScheduler& scheduler, const node::Borrower::LoanView& loan) {
  const auto ended = scheduler.ended_loans();
  if (std::find(ended.begin(), ended.end(), loan.id) != ended.end()) return true;
  const node::Sequence* sequence = scheduler.Find(loan.sequence);
  if (sequence == nullptr) return false;
  const engine::LentUnits* lent = node::FindLent(*sequence, loan.id);
  return lent != nullptr && lent->units == loan.units;
}

}  // namespace

void LoanChecker::Check(absl::Span<const LoanParty> parties) {
  ends_.clear();
  for (const LoanParty& party : parties) {
    Ends& ends = ends_.emplace_back(Ends{.party = &party, .debts = {}, .credits = {}});
    for (const auto& loan : party.resources->borrower().loans()) ends.debts.emplace(loan.id, loan);
    for (const auto& loan : party.resources->lender().loans()) ends.credits.emplace(loan.key, loan);
  }
  next_since_.clear();
  for (const Ends& ends : ends_) {
    CheckDebtor(ends);
    CheckCreditor(ends);
    CheckUsed(ends);
    CheckServed(ends);
  }
  since_.swap(next_since_);
}

const LoanChecker::Ends* LoanChecker::Find(const lending::DebtorId& node) const {
  const auto it = std::find_if(ends_.begin(), ends_.end(),
                               [&](const Ends& ends) { return ends.party->self == node; });
  return it == ends_.end() ? nullptr : &*it;
}

void LoanChecker::Follow(const Case& what, const LoanParty& by, absl::Duration limit,
                         absl::Time heard, absl::string_view ends) {
  const auto before = since_.find(what);
  const bool goes_on = before != since_.end() && before->second.heard == heard;
  Since since = goes_on ? before->second
                        : Since{.running = by.running, .heard = heard, .at_us = log_.now_us()};
  const absl::Duration lasted = by.running - since.running;
  if (lasted > limit && !std::exchange(since.reported, true)) {
    Violate(absl::StrCat(NameOf(what.key), " at ", NameOf(what.creditor), " is one-sided since ",
                         since.at_us, " us: for ", absl::FormatDuration(lasted), " of ",
                         by.self.node.value(), "'s time, at most ", absl::FormatDuration(limit),
                         "; ", ends));
  }
  next_since_.emplace(what, since);
}

// ---- the debtor's end

void LoanChecker::CheckDebtor(const Ends& ends) {
  const LoanParty& party = *ends.party;
  const node::NodeResources& resources = *party.resources;
  const auto key = [&](LoanId id) { return NameOf(lending::LoanKey{party.self, id}); };
  for (const LoanParty::Used& used : party.used) {
    const auto debt = ends.debts.find(used.loan);
    const bool known = debt != ends.debts.end() || IsKept(resources.borrower(), used.loan) ||
                       IsUntaken<lending::ReturnLoan>(resources, used.loan);
    if (!known) {
      Violate(absl::StrCat(key(used.loan), ": its lending plane uses it at ",
                           NameOf(NodeOf(*used.creditor)), ", its core does not know it"));
    }
  }
  std::set<node::SequenceId> sequences;
  for (const auto& [id, debt] : ends.debts) {
    sequences.insert(debt.sequence);
    if (debt.creditor == nullptr) continue;
    const auto used = FindUsed(party.used, id);
    const bool same = used == party.used.end() ? IsUntaken<lending::UseLoan>(resources, id)
                                               : NodeOf(*used->creditor) == NodeOf(*debt.creditor);
    if (!same) {
      Violate(absl::StrCat(
          key(id), ": its core has it at ", NameOf(NodeOf(*debt.creditor)), ", its lending plane ",
          used == party.used.end() ? "does not use it" : NameOf(NodeOf(*used->creditor))));
    }
    const bool lost = used != party.used.end() && used->lost;
    const bool of_use = !debt.used || IsLent(resources.scheduler(), debt);
    // A prompt that is computed keeps its loans until its export has ended.
    const node::Sequence* sequence = resources.scheduler().Find(debt.sequence);
    const bool parked = sequence != nullptr && sequence->phase == node::SequencePhase::kParked;
    if ((lost || !of_use) && !parked) {
      Follow({State::kOfNoUse, {party.self, id}, NodeOf(*debt.creditor)}, party,
             limits_.hop + limits_.step * party.slowness_max, absl::InfinitePast(),
             lost ? "the debtor's lending plane has lost it, its core keeps it"
                  : "the debtor's core keeps it, its sequence has not lent these units");
    }
  }
  for (const node::SequenceId id : sequences) {
    const node::Sequence* sequence = resources.scheduler().Find(id);
    if (sequence != nullptr && sequence->borrows()) CheckPlaces(ends, *sequence);
  }
}

void LoanChecker::CheckPlaces(const Ends& ends, const node::Sequence& sequence) {
  const node::SequenceScheduler& scheduler = ends.party->resources->scheduler();
  const std::string name =
      absl::StrCat(ends.party->self.node.value(), ": sequence ", sequence.id.value(), ": ");
  int32_t end = 0;
  std::vector<engine::LentUnits> all = sequence.remote.lent;
  const size_t gapless = all.size();
  if (const node::Rebuild* rebuild = sequence.rebuild.get(); rebuild != nullptr)
    all.insert(all.end(), rebuild->later.begin(), rebuild->later.end());
  for (size_t i = 0; i < all.size(); ++i) {
    const engine::LentUnits& lent = all[i];
    const auto debt = ends.debts.find(lent.loan);
    const bool follows = i < gapless ? lent.units.first == end : lent.units.first >= end;
    if (!follows || lent.units.size() < 1) {
      Violate(absl::StrCat(name, NameOf(lent.units), " are lent under loan ", lent.loan.value(),
                           ", expected units from ", end));
    }
    end = lent.units.end;
    const bool known = debt != ends.debts.end() && debt->second.sequence == sequence.id &&
                       debt->second.units == lent.units &&
                       (debt->second.used || sequence.awaits_loans);
    if (!known) {
      Violate(absl::StrCat(
          name, NameOf(lent.units), " are lent under loan ", lent.loan.value(), ", which the core ",
          debt == ends.debts.end() ? "does not know" : NameOf(debt->second.units)));
    }
  }
  const int64_t lent_blocks = node::BlocksOf({0, sequence.lent_units()}, scheduler.spec()).end;
  for (int64_t i = 0; i < std::ssize(sequence.blocks); ++i) {
    const bool here = sequence.blocks[static_cast<size_t>(i)] != engine::kNoBlock;
    const bool missing = sequence.rebuild != nullptr && i >= sequence.rebuild->held &&
                         i < sequence.rebuild->kept_first;
    if (here != (i >= lent_blocks && !missing)) {
      Violate(absl::StrCat(name, "block ", i, " lies ", here ? "here" : "nowhere", ", ",
                           lent_blocks, " blocks are lent"));
    }
  }
}

// A loan that the debtor's plane uses has a creditor that serves it, or is lost soon.
void LoanChecker::CheckUsed(const Ends& debtor) {
  const LoanParty& party = *debtor.party;
  for (const LoanParty::Used& used : party.used) {
    if (used.lost) continue;
    const lending::LoanKey key{party.self, used.loan};
    const Ends* creditor = Find(NodeOf(*used.creditor));
    const LoanParty::Served* served = nullptr;
    if (creditor != nullptr) {
      const auto it = FindServed(creditor->party->served, key);
      if (it != creditor->party->served.end()) served = &*it;
    }
    if (served != nullptr) {
      CheckPair(debtor, used, *creditor, *served);
      continue;
    }
    const std::string ends = absl::StrCat("the debtor uses it, the creditor ",
                                          creditor == nullptr ? "has ended" : "does not serve it");
    Follow({State::kDebtorAlone, key, NodeOf(*used.creditor)}, party,
           limits_.lease_time + TickOf(party), used.heard, ends);
  }
}

void LoanChecker::CheckPair(const Ends& debtor, const LoanParty::Used& used, const Ends& creditor,
                            const LoanParty::Served& served) {
  const auto debt = debtor.debts.find(used.loan);
  const auto credit = creditor.credits.find(served.key);
  if (debt == debtor.debts.end() || credit == creditor.credits.end()) return;
  const std::string name =
      absl::StrCat(NameOf(served.key), " at ", NameOf(creditor.party->self), ": ");
  const engine::UnitSpan& units = debt->second.units;
  if (!(units == served.units)) {
    return Violate(absl::StrCat(name, "the debtor has lent ", NameOf(units),
                                ", the creditor serves ", NameOf(served.units)));
  }
  const node::SequenceScheduler& scheduler = debtor.party->resources->scheduler();
  const node::OrdinalSpan blocks = node::BlocksOf(units, scheduler.spec());
  const auto& hashes = credit->second.hashes;
  if (std::ssize(hashes) != blocks.end - blocks.first) {
    return Violate(absl::StrCat(name, "the debtor has lent ", blocks.end - blocks.first,
                                " blocks, the creditor keeps ", hashes.size()));
  }
  const node::Sequence* sequence = scheduler.Find(debt->second.sequence);
  if (sequence != nullptr && std::ssize(sequence->hashes) >= blocks.end &&
      !std::equal(hashes.begin(), hashes.end(), sequence->hashes.begin() + blocks.first))
    Violate(absl::StrCat(name, "the creditor keeps blocks of other names than the debtor's"));
  if (debt->second.used && credit->second.filling) {
    Follow({State::kUsedUnfilled, served.key, creditor.party->self}, *creditor.party, limits_.hop,
           absl::InfinitePast(), "the debtor uses it, the creditor still waits for its blocks");
  }
}

// ---- the creditor's end

void LoanChecker::CheckCreditor(const Ends& ends) {
  const LoanParty& party = *ends.party;
  const node::NodeResources& resources = *party.resources;
  std::map<BlockId, int32_t> lent;
  for (const auto& [key, credit] : ends.credits) {
    for (const BlockId block : credit.blocks) ++lent[block];
    const auto served = FindServed(party.served, key);
    const bool is_served =
        served != party.served.end() || IsUntaken<lending::ServeLoan>(resources, key);
    if (is_served == credit.offered) {
      Violate(absl::StrCat(NameOf(key), " at ", NameOf(party.self), ": its core ",
                           credit.offered ? "has yet to fetch it" : "keeps it",
                           ", its lending plane ", is_served ? "serves it" : "does not serve it"));
    }
    if (served != party.served.end() && served->blocks != credit.blocks) {
      Violate(absl::StrCat(NameOf(key), " at ", NameOf(party.self), ": its core keeps ",
                           credit.blocks.size(), " blocks for it, its lending plane reads ",
                           served->blocks.size(), ", or others"));
    }
  }
  for (const LoanParty::Served& served : party.served) {
    if (ends.credits.contains(served.key) || IsUntaken<lending::StopServing>(resources, served.key))
      continue;
    Violate(absl::StrCat(NameOf(served.key), " at ", NameOf(party.self),
                         ": its lending plane serves it, its core does not know it"));
  }
  for (const auto& [block, loans] : lent) {
    const int32_t references = resources.scheduler().pool().references(block);
    if (references < loans) {
      Violate(absl::StrCat(NameOf(party.self), ": block ", block.value(), " belongs to ", loans,
                           " loans and has ", references, " references"));
    }
  }
  if (std::ssize(lent) != resources.lender().blocks_lent()) {
    Violate(absl::StrCat(NameOf(party.self), ": its loans have ", lent.size(), " blocks, ",
                         resources.lender().blocks_lent(), " count as lent"));
  }
}

// A loan that a creditor keeps has a debtor that uses it, or ends soon.
void LoanChecker::CheckServed(const Ends& creditor) {
  const LoanParty& party = *creditor.party;
  for (const auto& [key, credit] : creditor.credits) {
    const Ends* debtor = Find(key.debtor);
    const std::string says =
        absl::StrCat("the creditor ", credit.offered ? "fetches " : "serves ", credit.blocks.size(),
                     " blocks, the debtor ", debtor == nullptr ? "has ended" : "does not use it");
    if (credit.offered) {
      const int64_t bytes =
          std::ssize(credit.blocks) * party.resources->scheduler().spec().layout.block_bytes();
      Follow({State::kOffered, key, party.self}, party,
             node::Lender::kFetchTimeMax + cost::LoanBytesTime(bytes) + limits_.hop + TickOf(party),
             absl::InfinitePast(), says);
      continue;
    }
    const auto served = FindServed(party.served, key);
    if (served == party.served.end()) continue;
    if (debtor != nullptr) {
      const auto used = FindUsed(debtor->party->used, key.loan);
      if (used != debtor->party->used.end() && !used->lost && NodeOf(*used->creditor) == party.self)
        continue;
    }
    Follow({State::kCreditorAlone, key, party.self}, party, limits_.lease_time + TickOf(party),
           served->heard, says);
  }
}

}  // namespace tandem::sim
