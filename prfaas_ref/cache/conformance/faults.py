"""The faults: one changed place in our source each, as someone might really write it.

`before` occurs once in the module; a test keeps this table true to the source.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """In `module` of prfaas_ref.cache, `before` becomes `after`, and then: `story`."""

    module: str
    story: str
    before: str
    after: str


MATCHING = (
    Fault(
        "index",
        "a hit may cover the prompt's last token",
        "path = self.tree.find(chain, (len(chain) - 1) // self.block_size)\n        branch",
        "path = self.tree.find(chain, len(chain) // self.block_size)\n        branch",
    ),
    Fault("index", "KV without its state is a hit", "while self.state_blocks and usable and", "while False and"),
    Fault(
        "index",
        "a hit ends one block short of where the state is",
        "del path[self._usable(path) :]",
        "del path[max(0, self._usable(path) - 1) :]",
    ),
    Fault("tree", "a digest is trusted: tokens are not compared", " or block.tokens != tokens:", ":"),
    Fault("tree", "a digest is trusted: parents are not compared", "block.parent is not parent or ", ""),
    Fault("keys", "the tenant is left out of the namespace's hash", '"tenant": self.tenant,', '"tenant": "",'),
    Fault(
        "keys",
        "two tenants are the same namespace",
        '    tenant: str = ""\n',
        '    tenant: str = field(default="", compare=False)\n',
    ),
    Fault(
        "keys",
        "a key hashes its own block only, not the chain",
        "self._hasher(key + chunk)",
        "self._hasher(self.namespace.root + chunk)",
    ),
    Fault(
        "keys",
        "the tail of the tokens is hashed again with the next ones",
        "self._tail = self._tail[end // _TOKEN_BYTES :]",
        "self._tail = self._tail[:] if end < step else self._tail[end // _TOKEN_BYTES - 1 :]",
    ),
)
PUBLISHING = (
    Fault(
        "index",
        "a block is published before it is full",
        "for position in range(first, num_tokens // self.block_size):",
        "for position in range(first, min(len(alloc.chain.keys), self._blocks_for(num_tokens))):",
    ),
    Fault("index", "an adopted block's twin is leaked", "        self.tree.give_back(alloc.account, (own,))\n", ""),
    Fault("index", "an adopted block is not held", "        alloc.account.pin(block)\n", ""),
    Fault("index", "adopting leaks a pin on the parent", "        alloc.account.unpin(parent, None)\n", ""),
    Fault(
        "index",
        "after adopting, the block table names the twin",
        "        alloc.block_table[position] = block.block_id\n",
        "",
    ),
    Fault(
        "index",
        "on a collision the other prefix's block is adopted",
        "if block.parent is not parent or block.tokens != tokens:",
        "if False:",
    ),
    Fault("index", "publishing goes on behind a collision", "if alloc.publishes and self._publish", "if self._publish"),
    Fault(
        "tree", "a new child is not counted", "        parent.children += 1\n        self.blocks", "        self.blocks"
    ),
)
SNAPSHOTS = (
    Fault(
        "index",
        "a snapshot hangs one block early",
        "block = alloc.path[depth - 1] if depth <=",
        "block = alloc.path[max(0, depth - 2)] if depth <=",
    ),
    Fault(
        "index",
        "a second snapshot replaces the first and leaks it",
        "if block is None or block.snapshot is not None:",
        "if block is None:",
    ),
    Fault(
        "index",
        "a snapshot that came second is leaked",
        "            self.tree.give_back(alloc.account, ticket.block_ids)\n            return False",
        "            return False",
    ),
    Fault(
        "index",
        "reserved blocks are leaked when the request ends",
        "        for ticket in alloc.reserved:\n            self.tree.give_back(alloc.account, ticket.block_ids)\n",
        "",
    ),
    Fault(
        "index",
        "a snapshot is shown before it is written",
        "        alloc.reserved.append(ticket)\n",
        "        alloc.reserved.append(ticket)\n        if published:\n            self.tree.add_snapshot(alloc.account, alloc.path[depth - 1], ticket.block_ids)\n",
    ),
    Fault("index", "the state of a hit is not held", "        if snapshot:\n            account.pin(snapshot)\n", ""),
    Fault(
        "tree",
        "a snapshot is not its block's child",
        "        block.children += 1\n        account.add",
        "        account.add",
    ),
)
HOLDING = (
    Fault("index", "a hit is not held", "        account.pin(alloc.deepest)\n", ""),
    Fault(
        "index",
        "a refused request keeps its hit",
        "            self._unpin(alloc, None)\n            raise",
        "            raise",
    ),
    Fault(
        "index",
        "a finished request's private blocks are leaked",
        "        self.tree.give_back(alloc.account, alloc.private_blocks)\n",
        "",
    ),
    Fault(
        "index",
        "a finished request frees what it published",
        "alloc.account, alloc.private_blocks)",
        "alloc.account, alloc.block_table)",
    ),
    Fault(
        "index",
        "decode takes its block one token late",
        "self._blocks_for(len(alloc.chain) + len(new)) -",
        "self._blocks_for(len(alloc.chain) + len(new) - 1) -",
    ),
    Fault(
        "eviction",
        "a pin is not passed to the parent",
        "            self.evictable_blocks -= node.size\n            node = node.parent",
        "            self.evictable_blocks -= node.size\n            node = None",
    ),
    Fault(
        "eviction",
        "a released entry's parent stays pinned",
        "                self._offer(node)\n            node = node.parent",
        "                self._offer(node)\n            node = None",
    ),
    Fault("block_ids", "a free block is handed out and stays free", "        del self.returned[keep:]\n", ""),
)
EVICTION = (
    Fault("eviction", "a block with cached children is evicted", "if entry.pins or entry.children:", "if entry.pins:"),
    Fault("eviction", "a block in use is evicted", "if entry.pins or entry.children:", "if entry.children:"),
    Fault("eviction", "a parent never becomes a leaf", "            self._offer(parent)\n", "            pass\n"),
    Fault("eviction", "an evicted child is still counted", "        parent.children -= 1\n", ""),
    Fault("tree", "an evicted block is still found", "            del self.blocks[entry.key]\n", ""),
    Fault(
        "tree", "an evicted snapshot is still found", "            entry.block.snapshot = None\n", "            pass\n"
    ),
    Fault(
        "tree",
        "evicted blocks are lost",
        "        self.give_back(account, entry.block_ids)\n",
        "        account.held_blocks -= entry.size\n",
    ),
    Fault(
        "tree",
        "cached blocks are never evicted",
        "if count > self.ids.num_free + self.num_evictable:",
        "if count > self.ids.num_free:",
    ),
    Fault(
        "tree",
        "a request that is refused has evicted before",
        "        if count > self.ids.num_free + self.num_evictable:\n",
        "        while self.ids.num_free < count and self.shared.evictable_blocks:\n            self.evict(self.shared)\n        if count > self.ids.num_free + self.num_evictable:\n",
    ),
    Fault("tree", "quotas are ignored", "{tenant: Account(score, blocks)", "{tenant: Account(score, math.inf)"),
)
TRANSFERS = (
    Fault("transfer", "sent blocks are not held", "        alloc.account.pin(pinned)\n        try:", "        try:"),
    Fault(
        "transfer",
        "a partial page is not part of the transfer",
        "tail = -(-num_tokens // self.block_size) - full",
        "tail = num_tokens // self.block_size - full",
    ),
    Fault("transfer", "a request gives back blocks that a transfer still writes", "        alloc.writers += 1\n", ""),
    Fault(
        "transfer",
        "a request freed during a receive is leaked",
        "if transfer.alloc.freed and not transfer.alloc.writers:",
        "if False:",
    ),
    Fault(
        "transfer",
        "an aborted transfer is freed under its mover",
        "        if transfer.mover_is_done:\n",
        "        if True:\n",
    ),
    Fault(
        "transfer",
        "a late acknowledgement frees an aborted transfer",
        "        if transfer.state is not TransferState.ACTIVE:\n            return False\n        self._finish",
        "        if transfer.state is TransferState.DONE:\n            return False\n        self._finish",
    ),
    Fault("transfer", "an abort is forgotten", "        transfer.state = state\n        if", "        if"),
    Fault(
        "transfer",
        "a lease ends a moment late",
        "if now_s >= transfer.lease_end_s]",
        "if now_s > transfer.lease_end_s]",
    ),
    Fault(
        "transfer",
        "a finished transfer's own blocks are leaked",
        "        self.tree.give_back(transfer.account, transfer.own_blocks)\n",
        "",
    ),
    Fault(
        "transfer",
        "a finished transfer stays pinned",
        "            self.tree.unpin(transfer.account, transfer.pinned, transfer.root)\n",
        "            pass\n",
    ),
    Fault(
        "transfer",
        "a refused transfer stays pinned",
        "            alloc.account.unpin(pinned, None)\n            raise",
        "            raise",
    ),
)
FAULTS = MATCHING + PUBLISHING + SNAPSHOTS + HOLDING + EVICTION + TRANSFERS
