"""What is known of texts whose entities were replaced before they were trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cutlayer.customer import EntityMap, Source
from cutlayer.customer.columns import JOB
from cutlayer.customer.home import Home
from cutlayer.data import Dataset, has_column
from cutlayer.data.read import rows_with
from cutlayer.reports.schema import ProtectedEntities


def protected_entities(sources: Sequence[Source], home: Home) -> ProtectedEntities | None:
    """What stands in the places of entities, by the maps of the jobs that texts name.

    Args:
        sources: Texts; those that `protect` wrote name their job in a column.
        home: The folder of the customer who has the maps.

    Returns:
        Of all jobs together; `None` where texts name none of which there is a map.
    """
    named = {
        str(row[JOB])
        for source in sources
        if not isinstance(source, Dataset) and has_column(source, JOB)
        for row in rows_with(source, [JOB])
    }
    maps = [EntityMap.load(home, job) for job in sorted(named) if home.has_entities(job)]
    if not maps:
        return None
    return ProtectedEntities(
        drawn=sum(each.drawn for each in maps),
        replaced=sum(each.replaced for each in maps),
        mentions=sum(each.mentions for each in maps),
        clear=sum((Counter(each.clear) for each in maps), Counter[str]()),
    )
