"""stand-in"""
import threading,queue,time
from outgrow.analysis.timeline import Lane
class Ticket:
    def __init__(s,lane,storage,size,offset,address): s.lane,s.storage,s.size,s.offset,s.address=lane,storage,size,offset,address; s.ev=threading.Event(); s.error=None; s.begin=s.end=0.
    def wait(s):
        s.ev.wait()
        if s.error: raise s.error
class Link:
    def __init__(s,tier):
        s.tier=tier; s.q={Lane.OUT:queue.Queue(),Lane.IN:queue.Queue()}
        for l in s.q: threading.Thread(target=s._work,args=(l,),daemon=True).start()
    def _work(s,lane):
        while (t:=s.q[lane].get()) is not None:
            t.begin=time.perf_counter()
            try: (s.tier.write if lane is Lane.OUT else s.tier.read)(t.offset,t.address,t.size)
            except BaseException as e: t.error=e
            t.end=time.perf_counter(); t.ev.set()
    def submit(s,lane,storage,size,offset,address):
        t=Ticket(lane,storage,size,offset,address); s.q[lane].put(t); return t
    def close(s):
        for q in s.q.values(): q.put(None)
def measure_link(d,size_bytes=128<<20):
    from outgrow.ir.machine import Link as L
    return L(2.8e9,2.0e9)
