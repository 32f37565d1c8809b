"""Drives a manager one call at a time, as the outside world does, and checks every answer against the books."""

from prfaas_ref.cache.conformance.books import Books, Flight, Live, require


class Examiner(Books):
    """One manager under examination. Each method is one move, with its checks; `verify` is called after each."""

    def allocate(self, tenant: str, tokens: list[int]) -> Live | None:
        before, expected = self.adapter.num_reclaimable(), self._match(tenant, tokens)
        seen = self._sight()
        admission = self.adapter.allocate(tenant, list(tokens))
        if admission is None:
            self._check_refusal(before, self._blocks_for(len(tokens)) + self._state_blocks, tenant)
            require(self._sight() == seen, "a refused request changed what is cached")
            return None
        require(expected in (None, admission.cached_tokens), "match and allocate disagree")
        best, hit = self.oracle.longest_hit(tenant, tokens), admission.cached_tokens
        require(hit <= best, f"a hit of {hit} tokens, where at most {best} were published below the last token")
        require(hit == best or not self._nothing_lost(tenant), f"a prefix of {best} tokens is there; {hit} were hit")
        state = self.adapter.has_state and hit > 0
        require(bool(admission.state_blocks) == state, "a hit without its state, or state without a hit")
        self.handed_out += len(admission.block_table)
        return self._admit(tenant, tokens, admission)

    def advance(self, live: Live, num_tokens: int) -> None:
        """Write the KV of tokens up to `num_tokens` and commit it."""
        num_tokens = min(len(live.tokens), max(live.committed, num_tokens))
        if live.landing:
            return
        self._write_kv(live, num_tokens)
        table = self.adapter.commit(live.request, num_tokens)
        require(len(table) == len(live.table), "commit changed the length of a block table")
        for position, (old, new) in enumerate(zip(live.table, table, strict=True)):
            adopted = live.committed // self._B <= position < num_tokens // self._B
            require(old == new or adopted, "commit moved a block that was not just filled")
            if old != new and live.stream:
                live.stream.sees[old] = self.memory[old]  # given up, and still read
        live.table, live.committed = list(table), num_tokens
        if live.stream:
            live.stream.keeps.update(table)
        self.oracle.committed(live.tenant, live.tokens, num_tokens)

    def extend(self, live: Live, tokens: list[int]) -> None:
        """Decode: `tokens` are known now, their KV is not written yet."""
        before = self.adapter.num_reclaimable()
        table = self.adapter.extend(live.request, list(tokens))
        grown = self._blocks_for(len(live.tokens) + len(tokens)) - len(live.table)
        if table is None:
            self._check_refusal(before, grown, live.tenant)
            return
        require(table[: len(live.table)] == live.table, "extend moved a block")
        require(len(table) == len(live.table) + grown, "extend took another number of blocks than it needs")
        new = table[len(live.table) :]
        self._expect_unused(new)
        self.memory.update(dict.fromkeys(new, "stale"))
        self.handed_out += grown
        live.tokens += tokens
        live.table = list(table)
        if live.stream:
            live.stream.keeps.update(table)

    def reserve(self, live: Live, depth: int) -> None:
        """Ask for room for a snapshot after `depth` blocks; it is written and published later, if at all."""
        num_tokens = depth * self._B
        if not 0 < num_tokens <= len(live.tokens):
            return
        before = self.adapter.num_reclaimable()
        hold = self.adapter.reserve_checkpoint(live.request, num_tokens)
        if hold is None:
            exists = (live.tenant, tuple(live.tokens[:num_tokens])) in self.oracle.state
            require(
                exists or not self._nothing_lost(live.tenant, self._state_blocks), "a snapshot was refused without need"
            )
            require(self.adapter.num_reclaimable() == before, "a refused snapshot changed the pool")
            return
        self._expect_unused(hold.blocks)
        self.handed_out += len(hold.blocks)
        self.memory.update(dict.fromkeys(hold.blocks, "half-written state"))
        live.tickets.append((hold, num_tokens))

    def publish(self, live: Live) -> None:
        """Write the oldest reserved snapshot whose tokens are committed, and show it."""
        ready = [ticket for ticket in live.tickets if ticket[1] <= live.committed]
        if not ready:
            return
        hold, num_tokens = ready[0]
        live.tickets.remove(ready[0])
        prefix = (live.tenant, tuple(live.tokens[:num_tokens]))
        self.memory.update(dict.fromkeys(hold.blocks, ("state", *prefix)))
        shown = self.adapter.publish_checkpoint(hold.handle)
        expected = prefix not in self.oracle.state
        require(shown == expected or not self._nothing_lost(live.tenant), "a snapshot was not shown, or shown twice")
        self.oracle.snapshot(live.tenant, live.tokens, num_tokens)

    def free(self, live: Live) -> None:
        self.live.remove(live)
        self.recent = [*self.recent[-3:], (live.tenant, list(live.tokens))]
        live.freed = True
        live.tickets.clear()
        if live.stream:
            live.stream.sees |= {block: self.memory[block] for block in live.table}
        self.adapter.free(live.request)

    def send(self, live: Live, num_tokens: int, live_blocks: int, lease_s: float) -> None:
        num_tokens = min(num_tokens, live.committed)
        if not num_tokens:
            return
        before = self.adapter.num_reclaimable()
        hold = self.adapter.send(live.request, num_tokens, live_blocks, self.now_s + lease_s)
        if hold is None:
            require(self.adapter.num_reclaimable() == before, "a refused transfer changed the pool")
            return
        full = list(hold.read_blocks)
        needed = self._blocks_for(num_tokens) + live_blocks
        require(len(full) + len(hold.blocks) == needed, "a transfer holds another number of blocks than it needs")
        require(full == live.table[: len(full)], "a transfer reads other blocks than the request's")
        self._expect_unused(hold.blocks)
        self.handed_out += len(hold.blocks)
        flight = Flight(hold, self.now_s + lease_s, {block: self.memory[block] for block in full})
        flight.sees |= {block: ("transfer", id(flight)) for block in hold.blocks}
        self.memory.update(flight.sees)
        self.flights.append(flight)

    def stream(self, live: Live, live_blocks: int, lease_s: float) -> None:
        if live.landing or live.stream:
            return
        before = self.adapter.num_reclaimable()
        hold = self.adapter.stream(live.request, live_blocks, self.now_s + lease_s)
        if hold is None:
            require(self.adapter.num_reclaimable() == before, "a refused stream changed the pool")
            return
        self._expect_unused(hold.blocks)
        self.handed_out += len(hold.blocks)
        keeps = {*live.table, *live.state_blocks}
        live.stream = Flight(hold, self.now_s + lease_s, {}, source=live, keeps=keeps)
        live.stream.sees = {block: ("transfer", id(live.stream)) for block in hold.blocks}
        self.memory.update(live.stream.sees)
        self.flights.append(live.stream)

    def receive(self, tenant: str, tokens: list[int], live_blocks: int, lease_s: float) -> None:
        before = self.adapter.num_reclaimable()
        opened = self.adapter.receive(tenant, list(tokens), live_blocks, self.now_s + lease_s)
        if opened is None:
            require(self.adapter.num_reclaimable() == before, "a refused receive changed the pool")
            return
        admission, hold = opened
        self.handed_out += len(admission.block_table) + len(hold.blocks)
        live = self._admit(tenant, tokens, admission)
        self._expect_unused(hold.blocks)
        live.landing = Flight(hold, self.now_s + lease_s, {}, live)
        self.flights.append(live.landing)

    def land(self, flight: Flight) -> None:
        """All of it arrived (a receive) or was read (a send), and the manager hears of it."""
        over = flight.stopped or flight not in self.flights
        if flight.live and not flight.live.freed and not over:
            self._write_kv(flight.live, len(flight.live.tokens))
        before = self.adapter.num_reclaimable()
        done = self.adapter.ack(flight.hold.handle)
        require(done != over, "an acknowledgement in time was refused, or a late one taken")
        if over:
            require(self.adapter.num_reclaimable() == before, "a late or second acknowledgement freed something")
        else:
            self._finish(flight)

    def abort(self, flight: Flight) -> None:
        over = flight.stopped or flight not in self.flights
        require(self.adapter.abort(flight.hold.handle) != over, "an abort in time was refused, or a late one taken")
        flight.stopped = True

    def pass_time(self, seconds: float) -> None:
        """The clock advances and leases end."""
        self.now_s += seconds
        ended = [f for f in self.flights if not f.stopped and self.now_s >= f.lease_end_s]
        handles = self.adapter.expire(self.now_s)
        require(len(handles) == len(ended), "other leases ended than those whose time is over")
        for flight in ended:
            flight.stopped = True

    def settle(self, flight: Flight) -> None:
        """The mover of a stopped transfer has one last write, then says it is done."""
        if flight.stopped and flight in self.flights:
            late = dict.fromkeys(flight.hold.blocks, "a late write")
            if flight.live:
                late |= dict.fromkeys(flight.live.table[flight.live.cached // self._B :], "a late write")
            self.memory.update(late)
            flight.sees = {}
            self.verify()
            require(self.adapter.settle(flight.hold.handle), "a stopped transfer was not freed when its mover was done")
            self._finish(flight)
        elif flight not in self.flights:
            before = self.adapter.num_reclaimable()
            require(not self.adapter.settle(flight.hold.handle), "a transfer was settled twice")
            require(self.adapter.num_reclaimable() == before, "a second settling freed something")

    def drain(self) -> None:
        """Everything ends; then every block must be free and nothing be found."""
        for live in list(self.live):
            self.free(live)
        for flight in list(self.flights):
            self.abort(flight)
            self.settle(flight)
        self.verify()
        require(self.adapter.num_reclaimable() == self.config.num_blocks, "blocks leaked")
        self.adapter.evict_all()
        require(self.adapter.num_reclaimable() == self.config.num_blocks, "eviction lost blocks")
        for tenant, tokens in self.oracle.kv:
            require(not self._match(tenant, [*tokens, 0]), "an evicted prefix is still found")
        self.oracle.forget()
        self.verify()
